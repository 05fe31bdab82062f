/** Requests with many items: a bad one among good ones is dropped, and the good ones arrive. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import type { TSchema } from 'typebox';
import { BATCHES, type Batch, BatchSender } from '../../src/protocol/batches.ts';
import {
  type ControlPlaneClient,
  ControlPlaneUnavailable,
  CredentialRefused,
  RequestRefused,
} from '../../src/protocol/client.ts';
import type { ReportedExec } from '../../src/protocol/exec-types.ts';
import type { HostFacts, UsedMinute } from '../../src/protocol/host-types.ts';
import { ROUTES } from '../../src/protocol/routes.ts';
import type { Of } from '../../src/protocol/schemas.ts';
import type { ObjectRequest } from '../../src/protocol/types.ts';
import { newId } from '../../src/shared/ids.ts';
import { createLog } from '../../src/shared/log.ts';
import { untrustedText } from '../../src/shared/untrusted-text.ts';
import { type StrictControlPlane, strictControlPlane } from '../support/strict-control-plane.ts';

const AT = '2026-01-01T00:00:00.000Z';
const NEVER = new AbortController().signal;
const FACTS: HostFacts = {
  ...{ accelerator: 'tcg', accelerator_reason: '', cpus: 1, memory_mib: 1, images: [] },
  ...{ object_store_problem: null, isolation_problem: null },
};
const SPREADS: UsedMinute['spreads'] = {
  ...{ cpu: null, memory_used: null, memory_host: null, disk_read: null, disk_written: null },
  ...{ network_received: null, network_sent: null, dirty: null },
};

interface Case<Item> {
  /** As the batch's client sends it. */
  readonly post: (client: ControlPlaneClient, items: readonly Item[]) => Promise<unknown>;
  readonly good: () => Item;
  /** As a guest, or a fault of ours, could make it. */
  readonly bad: () => Item;
  readonly answer?: object;
}

interface Line {
  readonly kind: string;
  readonly id: string | null;
}

function senderOf<Item extends TSchema>(
  batch: Batch<Item>,
  { post }: Pick<Case<Of<Item>>, 'post'>,
  { client }: StrictControlPlane,
) {
  const lines: Line[] = [];
  const log = createLog('test', 'warn', { write: (line) => void lines.push(JSON.parse(line) as Line) });
  const sender = new BatchSender(batch, log);
  const settled: Of<Item>[] = [];
  const send = (items: readonly Of<Item>[]) =>
    sender.send(items, {
      post: (some) => post(client, some),
      settled: (some) => void settled.push(...some),
    });
  return { lines, settled, send };
}

/** As it is in a request. */
const shown = (item: unknown) => JSON.stringify(item).replace(/^"|"$/g, '');

const tested = new Set<string>();

function testBatch<Item extends TSchema>(
  { path }: { readonly path: string },
  batch: Batch<Item>,
  of: Case<Of<Item>>,
): void {
  const name = path.replace('/internal/v1/', '');
  const answers = of.answer === undefined ? {} : { [name]: of.answer };
  tested.add(batch.kind);
  describe(`${name}: one ${batch.kind} among good ones`, () => {
    const many = Array.from({ length: 9 }, of.good);

    test('that does not fit its schema is dropped and logged once, and nothing is refused', async (t) => {
      const control_plane = await strictControlPlane(t, { answers });
      const { send, lines, settled } = senderOf(batch, of, control_plane);
      const broken = of.bad();
      for (let round = 0; round < 2; round++) await send([...many.slice(0, 4), broken, ...many.slice(4)]);
      assert.equal(control_plane.said.length, 2);
      for (const { status, text } of control_plane.said) {
        assert.equal(status, 200);
        for (const item of many) assert.ok(text.includes(shown(item)), shown(item));
        assert.ok(!text.includes(shown(broken)));
      }
      assert.equal(settled.length, 20, 'what is dropped is not sent again');
      assert.deepEqual(
        lines.map(({ kind, id }) => [kind, id]),
        [[batch.kind, untrustedText(batch.nameOf(broken))]],
      );
    });

    test('that is refused all the same is found; the others arrive once, and it is not sent again', async (t) => {
      const poison = of.good();
      const control_plane = await strictControlPlane(t, {
        answers,
        statusOf: ({ text }) => (text.includes(shown(poison)) ? 422 : 200),
      });
      const { send, lines, settled } = senderOf(batch, of, control_plane);
      await send([...many.slice(0, 4), poison, ...many.slice(4)]);
      const arrived = control_plane.said.filter(({ status }) => status === 200).map(({ text }) => text);
      for (const item of many)
        assert.equal(arrived.filter((text) => text.includes(shown(item))).length, 1, shown(item));
      const refused = control_plane.said.filter(({ status }) => status !== 200).map(({ text }) => text);
      assert.equal(new Set(refused).size, refused.length, 'no request is repeated unchanged');
      assert.equal(settled.length, 10);
      assert.equal(lines.length, 1);
      const before = control_plane.said.length;
      await send([...many, poison]);
      assert.deepEqual(
        control_plane.said.slice(before).map(({ status }) => status),
        [200],
      );
      assert.equal(lines.length, 1);
    });
  });
}

const instance = () => newId('inst');
const fingerprint = () => `SHA256:${newId('inst').slice(5).padEnd(43, 'a')}`;
const hex = () => Buffer.from(newId('inst')).toString('hex').padStart(64, '0').slice(-64);
const hostname = () => `${instance().replace('_', '-')}.test`;

testBatch(ROUTES.heartbeat, BATCHES.heartbeat, {
  post: (client, disks) => client.heartbeat({ facts: FACTS, disks }),
  good: () => ({ instance_id: instance(), dirty_bytes: 1 }),
  bad: () => ({ instance_id: instance(), dirty_bytes: 1, root: { used_bytes: -1, total_bytes: 1 } }),
  answer: { host_id: newId('host') },
});
testBatch(ROUTES.logins, BATCHES.logins, {
  post: (client, fingerprints) => client.reportLogins({ vm_id: newId('vm'), epoch: 1, fingerprints }),
  good: fingerprint,
  bad: () => `${fingerprint()}\u0007`,
});
testBatch(ROUTES.minutes, BATCHES.minutes, {
  post: (client, minutes) => client.reportMinutes({ minutes }, NEVER),
  good: () => ({ instance_id: instance(), at: AT, spreads: SPREADS }),
  bad: () => ({
    instance_id: instance(),
    ...{ at: AT, spreads: { ...SPREADS, cpu: { mean: 1, min: -1, max: 2 } } },
  }),
});
const denied = (name: string) => ({
  ...{ instance_id: instance(), at: AT, name, address: null, port: null, count: 1 },
});
testBatch(ROUTES.denied, BATCHES.denied, {
  post: (client, denials) => client.reportDenied({ denials }),
  good: () => denied('a.test'),
  bad: () => denied('A B'),
});
const exec = (output_bytes: number) => ({
  ...{ instance_id: instance(), exec_id: newId('exec'), output_bytes, end: null },
});
const EXECS: Case<ReportedExec> = {
  post: (client, execs) => client.reportExecs({ execs }, NEVER),
  good: () => exec(1),
  bad: () => exec(2 ** 52),
};
testBatch(ROUTES.execs, BATCHES.execs, EXECS);
const offer = (id: string) => ({ id, version: hex(), recipe: '1', needed: false });
testBatch(ROUTES.offerImages, BATCHES.offerImages, {
  post: (client, images) => client.offerImages({ images }),
  good: () => offer('mine'),
  bad: () => offer('Mine'),
  answer: { verdicts: [] },
});
const get = (key: string): ObjectRequest => ({ method: 'GET', key });
testBatch(ROUTES.objectPermissions, BATCHES.objectPermissions, {
  post: (client, objects) => client.objectPermissions({ objects }),
  good: () => get(`disks/${instance()}/a`),
  bad: () => get(`disks/${instance()}/?`),
  answer: { permissions: [] },
});
testBatch(ROUTES.routes, BATCHES.routes, {
  post: (client, blocked) => client.routes({ seen: null, blocked }, NEVER),
  good: () => ({ host: hostname(), port: 22, problem: 'in use' }),
  bad: () => ({ host: hostname(), port: 22, problem: 'in\u001b use' }),
  answer: { etag: 'e', routes: [] },
});
testBatch(ROUTES.activity, BATCHES.activity, {
  post: (client, active) => client.reportActivity({ watched_ms: 1, active }, NEVER),
  good: () => ({ instance_id: instance(), ago_ms: 1 }),
  bad: () => ({ instance_id: instance(), ago_ms: 0.5 }),
  answer: {},
});
const use = (message: string) => ({
  ...{ port_id: newId('port'), requests: 1, sent_bytes: 0, received_bytes: 0 },
  last_error: { at: AT, code: 'BAD_GATEWAY', message },
});
testBatch(ROUTES.reportHttp, BATCHES.reportHttp, {
  post: (client, ports) => client.reportHttp({ ports, responses: [0, 0, 0, 0, 0] }, NEVER),
  good: () => use(''),
  bad: () => use('half a character: \ud83d'),
  answer: {},
});

test('while the control plane is unavailable, or refuses the credential, nothing is dropped', async (t) => {
  for (const [status, refusal] of [
    [503, ControlPlaneUnavailable],
    [429, ControlPlaneUnavailable],
    [401, CredentialRefused],
  ] as const) {
    const control_plane = await strictControlPlane(t, { statusOf: () => status });
    const { send, settled, lines } = senderOf(BATCHES.execs, EXECS, control_plane);
    const items = Array.from({ length: 3 }, EXECS.good);
    await assert.rejects(send(items), refusal);
    await assert.rejects(send(items), refusal);
    assert.deepEqual([settled, lines], [[], []]);
    assert.equal(control_plane.said.length, 2, 'one request each time');
  }
});

test('a control plane that refuses everything, also a request without items, costs few requests, and no item is dropped', async (t) => {
  const control_plane = await strictControlPlane(t, { statusOf: () => 400 });
  const { send, settled, lines } = senderOf(BATCHES.execs, EXECS, control_plane);
  for (const count of [0, 1, 5_000]) {
    const before = control_plane.said.length;
    await assert.rejects(send(Array.from({ length: count }, EXECS.good)), RequestRefused);
    assert.deepEqual([settled, lines], [[], []]);
    const requests = control_plane.said.length - before;
    assert.ok(requests < 20, String(requests));
  }
});

test('every batch is tested here', () => {
  assert.deepEqual(
    [...tested].sort(),
    Object.values(BATCHES)
      .map(({ kind }) => kind)
      .sort(),
  );
});

interface Listing {
  readonly properties?: Readonly<Record<string, { readonly type?: string; readonly items?: TSchema }>>;
}

/** Lists of items that belong together: to one VM, or to one decision. */
const WHOLES: Readonly<Record<string, string>> = {
  'boot-order.blocks': 'the order in which one boot read them',
  'commit.segments': 'one generation of one disk',
  'http-ports/report.responses': 'the counts of all ports, in the order of the classes',
  'keys.applied_keys':
    'the keys of one guest; without one of them, connections of revoked keys would seem to have ended',
};

test('every request with a list is in the table, or one whole for a reason', () => {
  const lists = Object.entries(ROUTES).flatMap(([name, { path, request, caller }]) => {
    if (caller !== 'host' && caller !== 'ingress') return [];
    const { properties = {} } = request as Listing;
    return Object.entries(properties)
      .filter(([, { type }]) => type === 'array')
      .filter(([property]) => property !== listIn(name))
      .map(([property]) => `${path.replace('/internal/v1/', '')}.${property}`);
  });
  assert.deepEqual(lists.sort(), Object.keys(WHOLES).sort());
});

/** The property of a batch's request with its items. */
function listIn(name: string): string | undefined {
  const found = Object.entries(BATCHES).find(([each]) => each === name);
  const { properties = {} } = ROUTES[name as keyof typeof ROUTES].request as Listing;
  return Object.entries(properties).find(
    ([, { items }]) => items !== undefined && items === found?.[1].item,
  )?.[0];
}
