/**
 * Who may import whom:
 *
 *   lib ← config ← db ← events ← domains ← tasks, http ← roles ← main
 *   host → lib, config, agent-api, object-store, disk-format      ingress → lib, agent-api
 *   agent-api, object-store → lib                    launch → lib, config
 *   disk-format → lib, object-store: what a disk is in the object store, for the host, tasks and the CLI
 *   audit, mail, idempotency → lib, db                            cli → client: what people type; domains, launch: on the server itself
 *   backup → what saves and brings back a whole machine: db, disks, vms, object-store, disk-format, launch, the host's images
 *   notifications → client: how the client names programs to people
 *   mcp → client: tools for models, which http and cli serve
 *   console → client: the page that browsers load, and nothing of the server
 *   adapters → client, lib: servers of other products' APIs, and nothing of Berth's server; lib judges the answers of guests
 *
 * The tables are the narrowest that is true. They only shrink: a line that nothing needs any more fails.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { filesBelow, type Import, importsOf, isTest, read, roomOf } from './imports.ts';

const DOMAINS = [
  ...(['auth', 'accounts', 'orgs', 'api-keys', 'service-accounts', 'ssh-keys'] as const),
  ...([
    'instances',
    'vms',
    'disks',
    'hosts',
    'control-planes',
    'images',
    'egress',
    'execs',
    'files',
    'ports',
    'secrets',
    'webhooks',
    'notifications',
  ] as const),
] as const;
const domains = DOMAINS as readonly string[];

/** Beside its own. A domain may import OF_A_DOMAIN and what DOMAIN_TO_DOMAIN says. */
const ROOMS: Record<string, readonly string[]> = {
  client: [],
  lib: [],
  config: ['lib'],
  'agent-api': ['lib'],
  'object-store': ['lib'],
  'disk-format': ['lib', 'object-store'],
  db: ['lib', 'agent-api'],
  events: ['lib', 'db'],
  idempotency: ['lib', 'db'],
  mail: ['lib', 'db'],
  audit: ['lib', 'db'],
  usage: ['lib', 'db'],
  tasks: [
    ...['lib', 'db', 'events', 'idempotency', 'agent-api', 'object-store', 'disk-format'],
    ...['accounts', 'audit', 'auth', 'mail', 'orgs', 'api-keys', 'hosts', 'instances', 'disks', 'vms'],
    ...['ports', 'usage', 'webhooks', 'notifications'],
  ],
  mcp: ['client', 'lib'],
  http: ['lib', 'db', 'events', 'idempotency', 'agent-api', 'audit', 'mail', 'usage', 'mcp', ...DOMAINS],
  host: ['lib', 'config', 'agent-api', 'object-store', 'disk-format'],
  ingress: ['lib', 'agent-api'],
  launch: ['lib', 'config', 'agent-api'],
  tracing: ['lib', 'config'],
  roles: [
    ...['lib', 'config', 'db', 'agent-api', 'object-store', 'mail', 'auth', 'hosts'],
    ...['control-planes', 'disks', 'disk-format', 'instances', 'webhooks'],
    ...['tasks', 'http', 'host', 'ingress', 'launch'],
  ],
  backup: [
    'lib',
    'config',
    'db',
    'object-store',
    'disk-format',
    'images',
    'disks',
    'vms',
    'hosts',
    'host',
    'launch',
  ],
  cli: [
    ...['client', 'lib', 'config', 'db', 'accounts', 'audit', 'auth', 'orgs', 'images', 'launch', 'backup'],
    ...[
      'instances',
      'hosts',
      'vms',
      'control-planes',
      'agent-api',
      'disks',
      'disk-format',
      'object-store',
      'host',
      'mcp',
      // `berth disk free` does what its task does.
      'tasks',
    ],
  ],
  console: ['client'],
  adapters: ['client', 'lib'],
  main: ['lib', 'config', 'launch', 'tracing', 'roles'],
};
const OF_A_DOMAIN = ['lib', 'db', 'events', 'agent-api'];

const DOMAIN_TO_DOMAIN: Record<(typeof DOMAINS)[number], readonly string[]> = {
  auth: ['audit'],
  accounts: ['audit', 'auth', 'api-keys', 'mail', 'orgs', 'ssh-keys'],
  orgs: ['auth', 'api-keys', 'mail', 'ssh-keys'],
  'api-keys': ['auth'],
  'service-accounts': ['auth', 'api-keys'],
  'ssh-keys': ['auth'],
  instances: ['auth', 'disk-format', 'disks', 'images', 'orgs', 'ssh-keys', 'usage'],
  vms: ['auth', 'hosts', 'images', 'instances', 'orgs', 'secrets', 'ssh-keys', 'usage'],
  disks: ['disk-format'],
  hosts: [],
  'control-planes': ['hosts'],
  images: ['hosts'],
  egress: ['instances'],
  execs: ['auth', 'hosts', 'instances', 'vms'],
  files: ['auth', 'hosts', 'instances', 'vms'],
  ports: ['auth', 'instances'],
  secrets: ['auth', 'instances'],
  webhooks: ['auth', 'orgs'],
  notifications: ['client'],
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

function allowed(room: string): readonly string[] {
  const domain = DOMAINS.find((each) => each === room);
  return domain ? [...OF_A_DOMAIN, ...DOMAIN_TO_DOMAIN[domain]] : (ROOMS[room] ?? []);
}

test("every import is allowed by its room's line", () => {
  const known = new Set(files);
  for (const each of imports) {
    assert.ok(known.has(each.to), `${line(each)}: no such file of src or client`);
    assert.ok(!isTest(each.to), `${line(each)}: a test is imported`);
  }
  const against = imports.filter(({ from, to }) => {
    const [here, there] = [roomOf(from), roomOf(to)];
    return here !== there && !allowed(here).includes(there);
  });
  assert.deepEqual(against.map(line).sort(), [...EXCEPTIONS].sort());
});

test('commands for users speak HTTP through the client only; only commands on the server use the database', () => {
  const ON_SERVER = [
    ...[
      'org-commands',
      'user-commands',
      'identity-commands',
      'image-commands',
      'host-commands',
      'drain-commands',
      'found-host',
      'ingress-commands',
      'database-commands',
      'secret-key-commands',
      'certificate-commands',
      'server-context',
    ],
    ...['disk-commands', 'disk-file-commands', 'disk-context', 'backup-commands', 'qemu-img'],
  ].map((name) => `src/cli/${name}.ts`);
  const theirs = imports.filter(({ from }) => roomOf(from) === 'cli' && !ON_SERVER.includes(from));
  const loaded = theirs.filter(({ to }) => roomOf(to) !== 'cli' && roomOf(to) !== 'client');
  assert.deepEqual([...new Set(loaded.map(({ to }) => to))].sort(), [
    'src/agent-api/protocol.ts',
    'src/config/env.ts',
    'src/lib/errors.ts',
    'src/lib/nearest.ts',
    'src/lib/quotas.ts',
    'src/lib/untrusted-text.ts',
    'src/lib/write-or-pause.ts',
    'src/mcp/mcp-server.ts',
  ]);
  // Those of the server are loaded when they are typed, and not before.
  assert.deepEqual(
    theirs.filter(({ to, lazy }) => ON_SERVER.includes(to) && !lazy),
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

test('every room has a line', () => {
  const rooms = [...new Set(files.map(roomOf))];
  assert.deepEqual(
    rooms.filter((room) => !(room in ROOMS) && !domains.includes(room)),
    [],
  );
});

test('no line allows an import that no file makes', () => {
  const all = files.flatMap(importsOf);
  const used = new Set(all.map(({ from, to }) => `${roomOf(from)} → ${roomOf(to)}`));
  const lines = Object.entries({ ...ROOMS, ...DOMAIN_TO_DOMAIN }).flatMap(([room, others]) =>
    others.map((other) => `${room} → ${other}`),
  );
  assert.deepEqual(
    lines.filter((each) => !used.has(each)),
    [],
    'take these out of the tables',
  );
});

test('only http serves HTTP, and neither its handlers nor host, ingress and launch hold SQL', () => {
  const uses = (name: string) =>
    files.filter(
      (path) => !isTest(path) && new RegExp(`^import (?!type )[^;]*from '${name}'`, 'm').test(read(path)),
    );
  assert.deepEqual(
    uses('fastify').filter((path) => !path.startsWith('src/http/')),
    [],
  );
  assert.deepEqual(
    uses('kysely').filter((path) => /^src\/(http\/v1|host|ingress|lib|launch)\//.test(path)),
    [],
  );
});

/** SQL that is no store's. Only ever fewer. */
const SQL_ELSEWHERE: readonly string[] = [
  // Locks of connections, which end with whoever has them.
  'src/disks/keep-objects.ts',
  // What the operator is shown on the server, of several domains' tables at once.
  ...['disk-context', 'org-commands', 'server-context', 'user-commands'].map((name) => `src/cli/${name}.ts`),
];

test('only db and stores have SQL', () => {
  const sql = /\.(selectFrom|insertInto|updateTable|deleteFrom)\(|\bsql(<[^`]*>)?`/;
  const holding = files.filter(
    (path) => !isTest(path) && !/^src\/db\/|(^|[/-])store\.ts$/.test(path) && sql.test(read(path)),
  );
  assert.deepEqual(holding, [...SQL_ELSEWHERE].sort());
});

test('tests beside code import only what that code may import', () => {
  for (const each of files.filter(isTest).flatMap(importsOf)) {
    const [here, there] = [roomOf(each.from), roomOf(each.to)];
    assert.ok(here === there || allowed(here).includes(there), line(each));
  }
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

test('each server and connection of ingress, gate and adapter is contained where it is made', () => {
  const shared = files.filter(
    (path) => !isTest(path) && /^(src\/ingress|src\/host\/egress|adapters)\//.test(path),
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

/** Imports of rooms that close a cycle. Only ever fewer. */
const CYCLES: readonly string[] = [];

test('there is no cycle between rooms', () => {
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
 * Inside host/: a room and the rooms of host/ that it imports. Each line names only rooms of lines above it, so there is no
 * cycle. A file at the root of host/ is a room by its name. Lines only shrink.
 */
const HOST_ROOMS: Record<string, readonly string[]> = {
  qmp: [],
  block: [],
  image: [],
  'boot-slots': [],
  'host-store': [],
  vm: ['qmp'],
  network: ['vm'],
  egress: ['network'],
  guest: ['qmp'],
  lease: ['vm'],
  keys: ['guest'],
  template: ['boot-slots', 'guest', 'image', 'network', 'qmp', 'vm'],
  secrets: ['guest', 'keys'],
  'own-image': ['guest', 'image', 'keys', 'vm'],
  'host-context': ['block', 'boot-slots', 'egress', 'image', 'lease', 'network', 'template', 'vm'],
  overlay: ['block', 'host-context', 'qmp', 'vm'],
  machine: ['guest', 'host-context', 'image', 'keys', 'network', 'overlay', 'qmp', 'vm'],
  flush: ['block', 'guest', 'host-context', 'machine', 'overlay', 'qmp', 'vm'],
  suspend: ['flush', 'host-context', 'machine', 'overlay', 'qmp', 'vm'],
  start: [
    ...['flush', 'guest', 'host-context', 'image', 'keys', 'lease', 'machine', 'overlay', 'qmp'],
    ...['network', 'secrets', 'suspend', 'template', 'vm'],
  ],
  runner: [
    ...['flush', 'guest', 'host-context', 'keys', 'machine', 'overlay', 'secrets', 'start'],
    ...['suspend', 'vm'],
  ],
  execs: ['guest', 'host-context', 'machine', 'qmp', 'vm'],
  calls: ['execs', 'guest', 'host-context', 'machine', 'network', 'runner'],
  'evict-stale-disks': ['host-context', 'machine', 'vm'],
  agent: ['calls', 'evict-stale-disks', 'execs', 'host-context', 'image', 'machine', 'runner', 'vm'],
};

test('inside host/, a room imports only the rooms of its line, which are above it', () => {
  const room = (path: string) => (path.split('/')[2] ?? '').replace(/\.ts$/, '');
  const inside = imports.filter(({ from, to }) => from.startsWith('src/host/') && to.startsWith('src/host/'));
  const used = new Set(inside.map(({ from, to }) => `${room(from)} → ${room(to)}`));
  const lines = Object.entries(HOST_ROOMS).flatMap(([here, others]) =>
    others.map((there) => `${here} → ${there}`),
  );
  const across = [...used].filter((each) => new Set(each.split(' → ')).size === 2);
  assert.deepEqual(across.sort(), lines.sort(), 'the table says less, or more, than the imports');
  const order = Object.keys(HOST_ROOMS);
  for (const [here, others] of Object.entries(HOST_ROOMS)) {
    for (const there of others) assert.ok(order.indexOf(there) < order.indexOf(here), `${here} → ${there}`);
  }
});
