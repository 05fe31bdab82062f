/**
 * Who may import whom. Between programs:
 *
 *   shared ← object-store ← disk-format ← host        shared ← protocol ← host, ingress, control-plane
 *   host, ingress, control-plane ← launcher ← main, cli
 *   shared, protocol ← egress-proxy: a process that the host starts, and speaks to by messages of protocol only
 *   client ← mcp, cli, console, adapters: what speaks HTTP to Berth
 *   control-plane → client: how the client names programs to people; mcp: the tools for models that it serves
 *   backup → what saves and brings back a whole machine
 *   adapters → client, shared: servers of other products' APIs, and nothing of Berth's server
 *
 * Inside the control plane, the kit (db, http, tasks) serves the features, and what composes (app, schedule …) knows them all. A
 * feature imports another where the table says so.
 *
 * The tables are the narrowest that is true. They only shrink: a line that nothing needs any more fails.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { filesBelow, type Import, importsOf, isTest, partOf, read, roomOf } from './imports.ts';

/** Beside its own. */
const ROOMS: Record<string, readonly string[]> = {
  client: [],
  shared: [],
  protocol: ['shared'],
  config: ['shared'],
  'object-store': ['shared'],
  'disk-format': ['object-store', 'shared'],
  mcp: ['client', 'shared'],
  host: ['config', 'disk-format', 'object-store', 'protocol', 'shared'],
  'egress-proxy': ['protocol', 'shared'],
  ingress: ['protocol', 'shared'],
  'control-plane': ['client', 'disk-format', 'mcp', 'object-store', 'protocol', 'shared'],
  backup: ['config', 'control-plane', 'disk-format', 'host', 'launcher', 'object-store', 'shared'],
  launcher: [
    'config',
    'control-plane',
    'disk-format',
    'host',
    'ingress',
    'object-store',
    'protocol',
    'shared',
  ],
  cli: [
    'backup',
    'client',
    'config',
    'control-plane',
    'disk-format',
    'host',
    'launcher',
    'mcp',
    'object-store',
    'protocol',
    'shared',
  ],
  console: ['client'],
  adapters: ['client', 'shared'],
  main: ['config', 'launcher', 'shared'],
};

/** Parts of the control plane that compose: they may import every other. */
const COMPOSE: readonly string[] = [
  ...[
    'app',
    'context',
    'internal',
    'schedule',
    'sweep',
    'monitoring',
    'write-openapi',
    'permissions-reference',
    'error-reference',
    'bounds-reference',
  ],
];
/** Parts that every feature may import. */
const KIT: readonly string[] = ['db', 'http', 'tasks', 'context', 'events', 'identity', 'internal'];
/** Parts of the control plane, and which others they import beside KIT. */
const FEATURES: Record<string, readonly string[]> = {
  db: [],
  tasks: ['db'],
  // Who calls, and what they may: the kit asks these features.
  http: ['audit', 'context', 'db', 'identity', 'organisations'],
  'api-keys': ['organisations', 'ssh-keys'],
  audit: [],
  disks: ['instances', 'secrets', 'usage', 'vms'],
  egress: ['instances'],
  events: ['organisations'],
  execs: ['fleet', 'instances', 'organisations', 'vms'],
  files: ['fleet', 'instances', 'vms'],
  fleet: ['disks', 'images', 'instances', 'mail', 'monitoring', 'notifications', 'organisations', 'vms'],
  identity: ['api-keys', 'audit', 'mail', 'organisations', 'ssh-keys'],
  images: ['fleet'],
  instances: ['disks', 'images', 'organisations', 'secrets', 'ssh-keys', 'usage', 'vms'],
  mail: [],
  mcp: [],
  notifications: ['mail'],
  organisations: ['api-keys', 'mail', 'ssh-keys'],
  pages: [],
  ports: ['instances', 'usage', 'vms'],
  secrets: ['instances'],
  'ssh-keys': ['instances', 'vms'],
  usage: [],
  vms: ['execs', 'fleet', 'images', 'instances', 'organisations', 'secrets', 'ssh-keys', 'usage'],
  webhooks: ['organisations'],
};

/** Single imports that go against the tables. Only ever fewer. */
const EXCEPTIONS: readonly string[] = [];

const files = [
  ...filesBelow('src', ['.ts']),
  ...filesBelow('client/src', ['.ts']),
  ...filesBelow('console/src', ['.ts', '.tsx']),
  ...filesBelow('adapters', ['.ts']),
];
const imports = files
  .filter((path) => !isTest(path))
  .flatMap(importsOf)
  .filter(({ to }) => !to.endsWith('.css'));
const line = ({ from, to }: Import) => `${from} → ${to}`;

function isAllowed({ from, to }: Import): boolean {
  const [here, there] = [roomOf(from), roomOf(to)];
  if (here !== there) return ROOMS[here]?.includes(there) ?? false;
  const [part, other] = [partOf(from), partOf(to)];
  if (part === null || other === null || part === other || COMPOSE.includes(part)) return true;
  const is_kit = part === 'db' || part === 'http' || part === 'tasks';
  return (FEATURES[part]?.includes(other) ?? false) || (!is_kit && KIT.includes(other));
}

test("every import is allowed by its room's line", () => {
  const known = new Set(files);
  for (const each of imports) {
    assert.ok(known.has(each.to), `${line(each)}: no such file of src or client`);
    assert.ok(!isTest(each.to), `${line(each)}: a test is imported`);
  }
  const against = imports.filter((each) => !isAllowed(each));
  assert.deepEqual(against.map(line).sort(), [...EXCEPTIONS].sort());
});

test('commands for users speak HTTP through the client only; only commands on the server use the database', () => {
  const isOnServer = (path: string) => path.startsWith('src/cli/server/');
  const theirs = imports.filter(({ from }) => roomOf(from) === 'cli' && !isOnServer(from));
  const loaded = theirs.filter(({ to }) => roomOf(to) !== 'cli' && roomOf(to) !== 'client');
  assert.deepEqual([...new Set(loaded.map(({ to }) => to))].sort(), [
    'src/config/env.ts',
    'src/mcp/mcp-server.ts',
    'src/protocol/protocol.ts',
    'src/shared/errors.ts',
    'src/shared/nearest.ts',
    'src/shared/quotas.ts',
    'src/shared/streams.ts',
    'src/shared/untrusted-text.ts',
  ]);
  // Those of the server are loaded when they are typed, and not before.
  assert.deepEqual(
    theirs.filter(({ to, lazy, type_only }) => isOnServer(to) && !lazy && !type_only),
    [],
  );
});

test('the console inserts no markup from strings and runs no strings as code', () => {
  const dangerous =
    /dangerouslySetInnerHTML|\.(inner|outer)HTML\b|insertAdjacentHTML|document\.write|\beval\(|new Function\(/;
  assert.deepEqual(
    files.filter((path) => path.startsWith('console/') && dangerous.test(read(path))),
    [],
  );
  // A style attribute would need style-src 'unsafe-inline'.
  assert.deepEqual(
    files.filter((path) => path.endsWith('.tsx') && /\sstyle=/.test(read(path))),
    [],
  );
});

test('every room and every part has a line', () => {
  const rooms = new Set(files.map(roomOf));
  assert.deepEqual(
    [...rooms].filter((room) => !(room in ROOMS)),
    [],
  );
  const parts = new Set(files.filter((path) => roomOf(path) === 'control-plane').map(partOf));
  assert.deepEqual(
    [...parts].filter((part) => part !== null && !(part in FEATURES) && !COMPOSE.includes(part)),
    [],
  );
});

test('no line allows an import that no file makes', () => {
  const all = files.flatMap(importsOf);
  const used = new Set([
    ...all.map(({ from, to }) => `${roomOf(from)} → ${roomOf(to)}`),
    ...all.map(({ from, to }) => `part ${partOf(from)} → ${partOf(to)}`),
  ]);
  const lines = [
    ...Object.entries(ROOMS).flatMap(([room, others]) => others.map((other) => `${room} → ${other}`)),
    ...Object.entries(FEATURES).flatMap(([part, others]) => others.map((other) => `part ${part} → ${other}`)),
  ];
  assert.deepEqual(
    lines.filter((each) => !used.has(each)),
    [],
    'take these out of the tables',
  );
});

test('only the control plane serves HTTP by routes, and neither these nor host, ingress and launcher hold SQL', () => {
  const uses = (name: string) =>
    files.filter(
      (path) => !isTest(path) && new RegExp(`^import (?!type )[^;]*from '${name}'`, 'm').test(read(path)),
    );
  assert.deepEqual(
    uses('fastify').filter((path) => !path.startsWith('src/control-plane/')),
    [],
  );
  assert.deepEqual(
    uses('kysely').filter((path) => /routes?\.ts$|^src\/(host|ingress|shared|launcher)\//.test(path)),
    [],
  );
});

/** SQL that is no store's. Only ever fewer. */
const SQL_ELSEWHERE: readonly string[] = [
  // Locks of connections, which end with whoever has them.
  'src/control-plane/disks/keep-objects.ts',
  // What the operator is shown on the server, of several domains' tables at once.
  // The kit's own table.
  'src/control-plane/http/idempotency.ts',
  ...['accounts', 'context', 'disks'].map((name) => `src/cli/server/${name}.ts`),
];

test('only db and stores have SQL', () => {
  const sql = /\.(selectFrom|insertInto|updateTable|deleteFrom)\(|\bsql(<[^`]*>)?`/;
  const holding = files.filter(
    (path) =>
      !isTest(path) && !/^src\/control-plane\/db\/|(^|[/-])store\.ts$/.test(path) && sql.test(read(path)),
  );
  assert.deepEqual(holding, [...SQL_ELSEWHERE].sort());
});

/** From which tests beside code make what they give to it. */
const STAND_INS: readonly string[] = ['only', 'scripted-qmp', 'host-folders'].map(
  (name) => `test/support/${name}.ts`,
);

test('tests beside code import only what that code may import, and stand-ins for it', () => {
  const against = files
    .filter(isTest)
    .flatMap(importsOf)
    .filter((each) => !isAllowed(each) && !STAND_INS.includes(each.to));
  assert.deepEqual(against.map(line), []);
});

/** What makes a server or a connection. */
const MAKERS: Record<string, readonly string[]> = {
  'node:net': ['connect', 'createConnection', 'createServer'],
  'node:tls': ['connect', 'createServer'],
  'node:http': ['createServer', 'get', 'request'],
  'node:https': ['createServer', 'get', 'request'],
  'node:http2': ['connect', 'createSecureServer', 'createServer'],
  'node:dgram': ['createSocket'],
  ws: ['WebSocket', 'WebSocketServer'],
};

test('each server and connection of ingress, proxy and adapter is contained where it is made', () => {
  const shared = files.filter(
    (path) => !isTest(path) && /^(src\/ingress|src\/egress-proxy|src\/host\/egress|adapters)\//.test(path),
  );
  const made = shared.flatMap((path) => {
    const text = read(path);
    const imported = [...text.matchAll(/^import \{([^}]*)\} from '([^']+)'/gm)];
    return imported.flatMap(([, names = '', from = '']) => {
      const makers = names
        .split(',')
        .map((each) => each.trim().split(' as '))
        .filter(([name = '']) => MAKERS[from]?.includes(name))
        .map(([name = '', local = name]) => local);
      return makers.flatMap((name) => {
        const all = text.match(new RegExp(`(?<![\\w.#])${name}\\(`, 'g'))?.length ?? 0;
        const contained = text.match(new RegExp(`contain\\(\\s*(new )?${name}\\(`, 'g'))?.length ?? 0;
        return [{ what: `${path}: ${name}`, all, contained }];
      });
    });
  });
  assert.ok(made.length >= 10, 'nothing was found');
  assert.deepEqual(
    made.filter(({ all, contained }) => all !== contained),
    [],
  );
});

/** Imports of programs that close a cycle. Only ever fewer. */
const CYCLES: readonly string[] = [];

test('there is no cycle between programs', () => {
  const used = new Set(imports.map(({ from, to }) => `${roomOf(from)} → ${roomOf(to)}`));
  const listed = new Set(CYCLES);
  assert.deepEqual(
    CYCLES.filter((each) => !used.has(each)),
    [],
    'take these out of the list',
  );
  const edges = [...used].filter((each) => !listed.has(each)).map((each) => each.split(' → '));
  const next = Map.groupBy(edges, ([from]) => from);
  const done = new Set<string>();
  const visit = (room: string, path: readonly string[]): void => {
    assert.ok(!path.includes(room), `a cycle: ${[...path.slice(path.indexOf(room)), room].join(' → ')}`);
    if (done.has(room)) return;
    for (const [, to] of next.get(room) ?? []) if (to && to !== room) visit(to, [...path, room]);
    done.add(room);
  };
  for (const room of next.keys()) if (room) visit(room, []);
});

test('there is no cycle between files', () => {
  const edges = Map.groupBy(
    imports.filter((each) => !each.type_only),
    (each) => each.from,
  );
  const done = new Set<string>();
  const visit = (path: string, way: readonly string[]): void => {
    assert.ok(!way.includes(path), `a cycle: ${[...way.slice(way.indexOf(path)), path].join(' → ')}`);
    if (done.has(path)) return;
    for (const { to } of edges.get(path) ?? []) visit(to, [...way, path]);
    done.add(path);
  };
  for (const path of files) visit(path, []);
});

/**
 * Inside host/: a room, and the rooms of host/ that it loads. Each line names only rooms of lines above it, so there is no cycle. A
 * file at the root of host/ is a room by its name. Types alone may also be of host-context, which names what everything on a host
 * shares, and of the rooms in TYPES. Lines only shrink.
 */
const HOST_ROOMS: Record<string, readonly string[]> = {
  'durable-file': [],
  'boot-slots': [],
  'host-store': [],
  qemu: ['durable-file'],
  guest: ['qemu'],
  network: ['qemu'],
  egress: ['network'],
  lease: ['qemu'],
  'host-context': ['qemu'],
  disk: ['durable-file', 'guest', 'qemu'],
  images: ['disk', 'guest', 'qemu'],
  vm: ['disk', 'durable-file', 'guest', 'host-context', 'images', 'lease', 'network', 'qemu'],
  'evict-stale-disks': ['disk', 'durable-file', 'vm'],
  reconciler: ['disk', 'guest', 'host-context', 'qemu', 'vm'],
  execs: ['guest', 'qemu', 'vm'],
  calls: ['execs', 'guest', 'network', 'vm'],
  agent: ['calls', 'evict-stale-disks', 'execs', 'images', 'qemu', 'reconciler', 'vm'],
};
const TYPES: readonly string[] = ['calls → reconciler', 'disk → vm', 'vm → boot-slots'];

test('inside host/, a room loads only the rooms of its line, which are above it', () => {
  const room = (path: string) => (path.split('/')[2] ?? '').replace(/\.ts$/, '');
  const inside = imports.filter(({ from, to }) => from.startsWith('src/host/') && to.startsWith('src/host/'));
  const across = (all: readonly Import[]) =>
    [...new Set(all.map(({ from, to }) => `${room(from)} → ${room(to)}`))]
      .filter((each) => new Set(each.split(' → ')).size === 2)
      .sort();
  const loaded = across(inside.filter((each) => !each.type_only));
  const lines = Object.entries(HOST_ROOMS).flatMap(([here, others]) =>
    others.map((there) => `${here} → ${there}`),
  );
  assert.deepEqual(loaded, lines.sort(), 'the table says less, or more, than the imports');
  const types = across(inside).filter((each) => !loaded.includes(each) && !each.includes('host-context'));
  assert.deepEqual(types, [...TYPES].sort(), 'types of other rooms');
  const order = Object.keys(HOST_ROOMS);
  for (const [here, others] of Object.entries(HOST_ROOMS)) {
    for (const there of others) assert.ok(order.indexOf(there) < order.indexOf(here), `${here} → ${there}`);
  }
});
