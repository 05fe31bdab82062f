/**
 * A program for the network namespace of a Patroni cluster. Two control planes use one database: one by the names of
 * all servers, the other through HAProxy. Clients write through both.
 *
 * A client repeats a request with its Idempotency-Key, and a commit with its id, until it knows the outcome. The
 * program prints each acknowledged write as a line of JSON. Its arguments are both URLs. It ends with its stdin.
 */
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { migrate } from '../../src/control-plane/db/migrate.ts';
import { openPool } from '../../src/control-plane/db/pool.ts';
import { ControlPlaneClient } from '../../src/protocol/client.ts';
import type { CommitRequest } from '../../src/protocol/types.ts';
import { type InstanceOut, startApi, type TestApi, type VmOut } from './api.ts';
import type { Answer, ErrorBody } from './client.ts';
import { segmentOf } from './scripted-agent.ts';
import { instanceIn } from './states.ts';

/** What a client acknowledged, or how an attempt failed. */
export type Line =
  | {
      readonly kind: 'account' | 'instance';
      readonly id: string;
      readonly name: string;
      readonly at_ms: number;
    }
  | { readonly kind: 'vm'; readonly id: string; readonly instance_id: string; readonly at_ms: number }
  | {
      readonly kind: 'commit';
      readonly instance_id: string;
      readonly generation: number;
      readonly commit_id: string;
      readonly at_ms: number;
    }
  | { readonly kind: 'failure'; readonly what: string; readonly took_ms: number; readonly at_ms: number }
  /** An answer that no caller should get. */
  | { readonly kind: 'wrong'; readonly what: string }
  | { readonly kind: 'ready' | 'end'; readonly at_ms: number };

const PAUSE_MS = 100;
const [url = '', proxy_url = ''] = process.argv.slice(2);
const stopped = new AbortController();
process.stdin.on('end', () => stopped.abort()).resume();

const say = (line: Line) => process.stdout.write(`${JSON.stringify(line)}\n`);
const now = () => Date.now();

async function startBoth(): Promise<readonly [TestApi, TestApi]> {
  await migrate(url);
  const database = { url, db: openPool(url, () => undefined), socket_dir: '' };
  const unused = { createEmpty: () => Promise.reject(new Error('none here')), close: async () => undefined };
  // Enough addresses for all instances that it makes.
  const ports = { first_port: 10_000, last_port: 65_000 };
  const first = await startApi({ ...ports, database: { ...database, ...unused } });
  const { db: _db, hub: _hub, host_calls: _calls, ...shared } = first.context;
  const second = await startApi({
    ...{ database: { ...database, ...unused, url: proxy_url }, context: shared },
    host_token: first.host_token,
  });
  return [first, second];
}

/** 503, and 409 of a request whose first attempt may still be running, are repeated. */
const mayRepeat = ({ status, body }: Answer<ErrorBody>) =>
  status === 503 || (status === 409 && body.error.code === 'IDEMPOTENCY_IN_PROGRESS');

async function acknowledged<T>(
  apis: readonly TestApi[],
  token: string,
  path: string,
  json?: unknown,
): Promise<T> {
  const headers = { 'idempotency-key': randomUUID() };
  for (let attempt = 0; ; attempt++) {
    const api = apis[(attempt + Math.floor(Math.random() * 2)) % 2] as TestApi;
    const began = performance.now();
    const answer = await api.as(token).post<ErrorBody>(path, json, { headers });
    if (answer.status < 300) return answer.body as T;
    if (mayRepeat(answer))
      say({
        kind: 'failure',
        what: answer.body.error.code,
        took_ms: performance.now() - began,
        at_ms: now(),
      });
    else say({ kind: 'wrong', what: `${path}: ${answer.status} ${answer.text}` });
    await sleep(PAUSE_MS);
  }
}

async function committed(clients: readonly ControlPlaneClient[], commit: CommitRequest): Promise<void> {
  const { instance_id, generation, commit_id } = commit;
  for (let attempt = generation; ; attempt++) {
    const began = performance.now();
    try {
      const { outcome } = await (clients[attempt % 2] as ControlPlaneClient).commit(commit);
      if (outcome === 'committed')
        return void say({ kind: 'commit', instance_id, generation, commit_id, at_ms: now() });
      say({ kind: 'wrong', what: `commit ${generation} of ${instance_id}: ${outcome}` });
      return;
    } catch (error) {
      say({
        kind: 'failure',
        what: `commit: ${String(error)}`,
        took_ms: performance.now() - began,
        at_ms: now(),
      });
      await sleep(PAUSE_MS);
    }
  }
}

async function run(): Promise<void> {
  const apis = await startBoth();
  const [first, second] = apis;
  const owner = await first.person();
  const token = owner.session;
  const clients = apis.map(
    ({ internal_origin: address }) => new ControlPlaneClient({ address, token: second.host_token }),
  );
  const machines: InstanceOut[] = [];
  for (let i = 0; i < 4; i++) machines.push(await instanceIn(second, owner, 'running'));

  const writers = Array.from({ length: 4 }, async (_, writer) => {
    for (let i = 0; !stopped.signal.aborted; i++) {
      const json = { name: `w${writer}-${i}`, scope: 'vm:read' };
      const { id } = await acknowledged<{ id: string }>(apis, token, '/v1/service-accounts', json);
      say({ kind: 'account', id, name: json.name, at_ms: now() });
    }
  });
  const makers = Array.from({ length: 2 }, async (_, maker) => {
    for (let i = 0; !stopped.signal.aborted; i++) {
      const json = { name: `m${maker}-${i}` };
      const made = await acknowledged<InstanceOut>(apis, token, '/v1/instances', json);
      say({ kind: 'instance', id: made.id, name: json.name, at_ms: now() });
      if (i % 4 !== 0) continue;
      const vm = await acknowledged<VmOut & { id: string }>(apis, token, `/v1/instances/${made.id}/vm`);
      say({ kind: 'vm', id: vm.id, instance_id: made.id, at_ms: now() });
    }
  });
  const flushers = machines.map(async ({ id: instance_id }) => {
    const { vm_id, epoch } = await second.agent.known(instance_id);
    let parent_id = (await second.agent.client.head(instance_id))?.commit_id ?? '';
    for (let generation = 1; !stopped.signal.aborted; generation++) {
      const commit_id = randomUUID();
      await committed(clients, {
        ...{ instance_id, vm_id, epoch, generation, commit_id, parent_id },
        image_version: 'a'.repeat(64),
        segments: [segmentOf(instance_id, epoch, generation, commit_id.slice(0, 8))],
        ...{ consistency: 'filesystem', dirty_bytes: 4096 },
      });
      parent_id = commit_id;
    }
  });
  say({ kind: 'ready', at_ms: now() });
  await Promise.all([...writers, ...makers, ...flushers]);
  say({ kind: 'end', at_ms: now() });
  process.exit(0);
}

run().catch((error: unknown) => {
  process.stderr.write(`${error instanceof Error ? (error.stack ?? error.message) : String(error)}\n`);
  process.exit(1);
});
