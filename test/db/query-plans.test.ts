/**
 * No statement reads, sorts or looks through more rows because an installation has more instances. The product runs in front of a
 * database of 20,000; the plans are PostgreSQL's own, of each statement that was sent, and say nothing of time.
 */
import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { knownMarks } from '../../src/control-plane/disks/store.ts';
import { listEventsSince } from '../../src/control-plane/events/store.ts';
import { listInstances } from '../../src/control-plane/instances/store.ts';
import { listHttpRoutes } from '../../src/control-plane/ports/store.ts';
import { schedule } from '../../src/control-plane/schedule.ts';
import { listRoutes } from '../../src/control-plane/vms/route-store.ts';
import { listDueWebhooks } from '../../src/control-plane/webhooks/store.ts';
import { FolderStore } from '../../src/object-store/folder-store.ts';
import { ownStore } from '../../src/object-store/store-mark.ts';
import type { InstanceId, OrgId } from '../../src/shared/ids.ts';
import { apiForFile, type InstanceOut } from '../support/api.ts';
import { queryOnce, startDatabase } from '../support/database.ts';
import { fillWithInstances, HOSTS, INSTANCES, LARGE_ORG, numbered, SSH } from '../support/many-instances.ts';
import { makePerson } from '../support/people.ts';
import { type Limits, PlanRecorder, problemsOf, reportPlans } from '../support/query-plans.ts';

/** Those with more rows are never read as a whole. */
const LARGE_ROWS = 1_000;
const REQUEST: Limits = { rows: 600, pages: 1_500, sorted: 300, whole: [] };
/** A task every second or so: it may look at everything that runs. */
const POLL: Limits = { rows: 3_000, pages: 4_000, sorted: 1_000, whole: [] };
/** Tasks that run every few minutes look at every disk: linear, and rare. */
const ALL = { rows: 20 * INSTANCES, pages: 60 * INSTANCES, sorted: 4 * INSTANCES };
const LIMITS_OF_TASKS: Readonly<Record<string, Partial<Limits>>> = {
  'count-usage': { ...ALL, whole: ['disks', 'instances'] },
  'drop-generations': { ...ALL, whole: ['generations', 'instances'] },
  'checkpoint-disks': { ...ALL, whole: ['disks', 'instances', 'generations'] },
  'compact-disks': { ...ALL, whole: ['disks', 'instances'] },
  'free-segments': { ...ALL, whole: ['segments', 'segment_holders'] },
};
/** One lists all objects every six hours, the other needs an OpenID provider. */
const NOT_RUN = ['sweep-orphans', 'check-identities'];

const database = await startDatabase();
await fillWithInstances(database.url);
await reportPlans(database.url);
const recorder = new PlanRecorder(database.url);
const api = await apiForFile({
  database,
  ssh_hosts: SSH.hosts,
  first_port: SSH.first_port,
  last_port: SSH.last_port,
  context: { db: recorder.db },
});
const owner = await makePerson(database.db, { org_id: LARGE_ORG as OrgId, role: 'owner' });
const client = api.as(owner);
const some = numbered('inst', INSTANCES / 2) as InstanceId;
const large = new Set(
  (
    await queryOnce<{ name: string }>(
      database.url,
      `select relname as name from pg_class where relkind = 'r' and reltuples > ${LARGE_ROWS}`,
    )
  ).map(({ name }) => name),
);

/** The statements of `work` that break the limits. */
async function problems(work: () => Promise<unknown>, limits: Limits): Promise<string[]> {
  recorder.take();
  await work();
  const executed = recorder.take();
  assert.ok(executed.length > 0, 'something was executed');
  const found = executed.flatMap((each) =>
    problemsOf(each, limits, large).map((problem) => `${problem}: ${each.text.replaceAll(/\s+/g, ' ')}`),
  );
  return [...new Set(found)];
}

function check(
  name: string,
  work: () => Promise<unknown>,
  change: Partial<Limits> = {},
  base = REQUEST,
): void {
  test(name, async () => assert.deepEqual(await problems(work, { ...base, ...change }), []));
}

async function answered(answer: Promise<{ status: number; text: string }>): Promise<void> {
  const { status, text } = await answer;
  assert.ok(status >= 200 && status < 300, `${status} ${text}`);
}

const page = (query = '') => answered(client.get(`/v1/instances?limit=20${query}`));

describe('a request', () => {
  let made: InstanceOut;
  const path = () => `/v1/instances/${made.id}`;
  check('creates an instance', async () => {
    made = await api.instance(owner, { labels: { group: 'g7' } });
  });
  check('starts it, so it is placed on one of 200 hosts', () => answered(client.post(`${path()}/vm`)), {
    rows: 3 * HOSTS + 10,
  });
  check('reads it', () => answered(client.get(path())));
  check('lists the first page', () => page());
  check('lists a page behind three quarters of the list', () =>
    listInstances(recorder.db, owner.org_id, {}, numbered('inst', INSTANCES / 4), 20),
  );
  // One in 50 has it: without an index of labels some thousand are read, whatever the number of all.
  check('lists by label', () => page('&label=group%3Dg7'), { rows: 2_500, pages: 4_000 });
  check('lists by state', () => page('&state=suspended'), { rows: 1_500, pages: 3_000 });
  check('lists events', () => answered(client.get('/v1/events?limit=20')));
  check('lists the events of an instance', () =>
    answered(client.get(`/v1/events?limit=20&resource=${some}`)),
  );
  check('lists audit entries', () => answered(client.get('/v1/audit?limit=20')));
  check('stops the VM', () => answered(client.delete(`${path()}/vm`)));
  check('deletes the instance', () => answered(client.delete(path())));
});

describe('a host', () => {
  check('reports itself and its disks', () => api.agent.heartbeat([{ instance_id: some, dirty_bytes: 0 }]));
  check('renews its lease', () =>
    api.agent.client.renewLease({ kept_ms: null }, 5_000, AbortSignal.timeout(5_000)),
  );
  check('polls its assignments', () =>
    api.agent.client.poll({ seen: 'nothing' }, AbortSignal.timeout(5_000)),
  );
});

describe('an ingress', () => {
  check('gets the changed routes', async () => {
    await listRoutes(recorder.db, null, [some]);
    await listHttpRoutes(recorder.db, api.context.http, null, [some]);
  });
  check('reports which VMs are in use', () =>
    api.ingress.reportActivity(
      { watched_ms: 1_000, active: [{ instance_id: some, ago_ms: 0 }] },
      AbortSignal.timeout(5_000),
    ),
  );
});

describe('beside them', () => {
  check('a stream of events reads on', () =>
    listEventsSince(recorder.db, { org_id: owner.org_id, types: ['instance.created'] }, 59_900, 100),
  );
  check('webhooks with something to send are found', () => listDueWebhooks(recorder.db));
});

const store_dir = await mkdtemp(join(tmpdir(), 'berth-plans-'));
after(() => rm(store_dir, { recursive: true, force: true }));
const tasks = schedule({
  ...api.context,
  store: ownStore(knownMarks(recorder.db), await FolderStore.open(store_dir)),
  deliver: async () => undefined,
  removal_delay_ms: 3_600_000,
  signal: new AbortController().signal,
});

describe('the task', () => {
  for (const { name, run } of tasks.filter((task) => !NOT_RUN.includes(task.name)))
    check(name, run, LIMITS_OF_TASKS[name], POLL);
});

test('a missing index shows', async () => {
  await queryOnce(database.url, 'drop index instances_deleting');
  const [task] = tasks.filter(({ name }) => name === 'free-deleted');
  assert(task);
  assert.match((await problems(task.run, POLL)).join('\n'), /^reads all of instances: select "i"/);
});
