/** Waits for a host whose agent stands still: they end with that reason, and not before it has been silent for 20 s. */
import assert from 'node:assert/strict';
import { afterEach, test } from 'node:test';
import { sql } from 'kysely';
import { HostCalls, HostSilence } from '../../src/control-plane/fleet/host-calls.ts';
import { noOthers } from '../../src/control-plane/fleet/peers.ts';
import { FRAME, offsetBytes, streamFrame } from '../../src/protocol/exec-types.ts';
import { apiForFile } from '../support/api.ts';
import { makeExec } from '../support/execs.ts';
import { assertError } from '../support/expect.ts';
import { instanceIn } from '../support/states.ts';

const api = await apiForFile({ context: { heartbeat_ms: 50 } });
const owner = await api.person();
const client = api.as(owner);
const { agent, db } = api;
const { id } = await instanceIn(api, owner, 'running');
const path = `/v1/instances/${id}`;

/** As if its last sign of life had been `seconds` ago. */
async function silentFor(seconds: number): Promise<void> {
  await agent.silence();
  const last_seen_at = sql<Date>`now() - make_interval(secs => ${seconds})`;
  await db.updateTable('hosts').set({ last_seen_at }).where('id', '=', api.host_id).execute();
}

afterEach(() => agent.connect());

const STANDS_STILL = /has given no sign of life for 20 s/;

test('a flush ends with the reason, and clients do not repeat it', async () => {
  const asked = client.post(`${path}/vm/flush`);
  const flush_id = await agent.askedToFlush(id);
  await silentFor(21);
  const answer = await asked;
  assertError(answer, 'UNAVAILABLE', STANDS_STILL);
  assert.match(answer.text, /The flush goes on/);
  assert.equal(answer.headers['retry-after'], '60');
  await agent.connect();
  await agent.endFlush(flush_id);
});

test('a start of an exec, metrics and an open stream that the agent has taken end with the reason', async () => {
  const asked = client.post(`${path}/execs`, { command: ['true'] });
  await agent.nextCall('exec_start');
  const metrics = client.get(`${path}/vm/metrics`);
  await agent.nextCall('metrics');
  await silentFor(21);
  for (const answer of await Promise.all([asked, metrics])) {
    assertError(answer, 'UNAVAILABLE', STANDS_STILL);
    assert.equal(answer.headers['retry-after'], '60');
  }
});

test('a follower is cut off, and can ask again', async () => {
  const exec_id = await makeExec(db, { instance_id: id, host_id: api.host_id }, 'running');
  const asked = fetch(`${api.origin}${path}/execs/${exec_id}/output?follow=true`, {
    headers: { authorization: `Bearer ${owner.session}` },
  });
  const { id: call_id } = await agent.nextCall('exec_stream');
  const line = await agent.client.openConsole(call_id);
  line.on('error', () => undefined);
  line.write(streamFrame(FRAME.attached, offsetBytes(0)));
  const response = await asked;
  await silentFor(21);
  assert.doesNotMatch(await response.text(), /event:/);
  line.destroy();
});

test('a host that has been silent for long is named at once, before a call to it has waited to be taken', async () => {
  await silentFor(300);
  assertError(await client.get(`${path}/vm/metrics`), 'UNAVAILABLE', STANDS_STILL);
});

test('work that takes long is no silence', async () => {
  const calls = new HostCalls(noOthers(), new HostSilence(db, 10));
  const never = new AbortController().signal;
  const call = { kind: 'metrics', instance_id: id, vm_id: (await agent.known(id)).vm_id } as const;
  const asked = calls.ask(api.host_id, call, 60_000, never);
  const [taken] = await calls.take(api.host_id, 1_000, never);
  await silentFor(19);
  // Many looks at the host, whose heartbeats go on.
  for (let beats = 0; beats < 40; beats++) await agent.heartbeat();
  const error = { code: 'failed', message: 'It took long.' } as const;
  calls.answerOurs(api.host_id, taken?.id ?? '', { error });
  await assert.rejects(asked, /It took long/);
});
