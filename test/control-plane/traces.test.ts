/** A request's trace and its id on their way to the host and back. The host is a test double; test/guest/traces.test.ts has the real one. */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { stopIdle } from '../../src/control-plane/vms/stop-vm.ts';
import { sendTraces, type TraceSending } from '../../src/launcher/send-traces.ts';
import type { ExecResult } from '../../src/protocol/host-calls.ts';
import { inWork } from '../../src/shared/tracing.ts';
import { apiForFile } from '../support/api.ts';
import { instanceIn } from '../support/states.ts';
import { TraceCollector } from '../support/trace-collector.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile();
const owner = await api.person();
const client = api.as(owner);
const { agent } = api;
const RESULT: ExecResult = { exit_code: 0, stdout: 'hunter3', stderr: '', truncated: false };
const [TRACE, CALLER] = ['c'.repeat(32), '1'.repeat(16)];
const headers = { traceparent: `00-${TRACE}-${CALLER}-01` };

describe('without an endpoint', () => {
  test('the id of a request goes to the host, and no trace', async () => {
    const { id } = await api.instance(owner);
    const started = await client.post(`/v1/instances/${id}/vm`, undefined, { headers });
    const { trace_context } = await agent.assigned(id);
    assert.deepEqual(trace_context, { request_id: started.headers['x-request-id'] });
  });

  test('a VM has the id of the last request for its state, a flush its own, and a deletion none', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const { trace_context: of_start } = await agent.known(id);
    const flushing = client.post(`/v1/instances/${id}/vm/flush`);
    const flush_id = await agent.askedToFlush(id);
    const asked = await agent.known(id);
    assert.deepEqual(asked.trace_context, of_start);
    await agent.beginFlush(flush_id);
    await agent.endFlush(flush_id);
    assert.deepEqual(asked.flush_trace_context, { request_id: (await flushing).headers['x-request-id'] });
    const stopped = await client.delete(`/v1/instances/${id}/vm`);
    assert.deepEqual((await agent.known(id)).trace_context, {
      request_id: stopped.headers['x-request-id'],
    });
    await client.delete(`/v1/instances/${id}`);
    const deleted = await agent.assigned(id, 'it is deleted', ({ desired }) => desired === 'deleted');
    assert.equal(deleted.trace_context, undefined);
  });
});

describe('with an endpoint', () => {
  let collector: TraceCollector;
  let sending: TraceSending;

  before(async () => {
    collector = await TraceCollector.start();
    process.env['OTEL_EXPORTER_OTLP_ENDPOINT'] = collector.url;
    const traces = { sampler: 'parentbased_always_on', ratio: 1 } as const;
    sending = sendTraces({ role: 'test', traces, log: api.context.log, delay_ms: 10 });
  });
  after(async () => {
    delete process.env['OTEL_EXPORTER_OTLP_ENDPOINT'];
    await sending.close();
    await collector.close();
  });

  const arrived = (name: string) =>
    until(`${name} arrives`, () => collector.spans.find((span) => span.name === name));

  test("a call's trace continues its caller's, and the host's work and reports continue that of the call", async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const body = { command: ['cat', '/etc/hunter2'], stdin: 'hunter1' };
    const asking = client.post(`/v1/instances/${id}/vm/exec?timeout=1`, body, { headers });
    // An unknown query is refused, and is in no span either.
    assert.equal((await asking).status, 400);
    const asked = client.post<ExecResult>(`/v1/instances/${id}/vm/exec`, body, { headers });
    const pending = await agent.nextCall('exec');
    const { trace_context: context } = pending as { trace_context?: { traceparent: string } };
    await inWork({ name: 'host works', context }, () =>
      agent.client.answerCall({ id: pending.id, answer: { result: RESULT } }),
    );
    const request_id = (await asked).headers['x-request-id'];
    const request = 'POST /v1/instances/:id/vm/exec';
    await until('the request arrives', () =>
      collector.spans.some(
        ({ name, parent_id, attributes: found }) =>
          name === request &&
          parent_id === CALLER &&
          found['http.response.status_code'] === 200 &&
          found['berth.instance_id'] === id &&
          found['berth.request_id'] === request_id,
      ),
    );
    const answered = await arrived('POST /internal/v1/calls/answer');
    assert.equal(answered.trace_id, TRACE);
    await until('the way to it arrives', () => collector.pathTo(answered)[0] === request);
    assert.deepEqual(collector.pathTo(answered), [request, 'call host exec', 'host works', answered.name]);
    for (const hidden of ['hunter', '/etc/', 'timeout=', owner.session])
      assert(!collector.received.includes(hidden), hidden);
  });

  test('a failed request is failed by its status alone', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const asked = client.post(`/v1/instances/${id}/vm/exec`, { command: ['hunter4'] });
    const pending = await agent.nextCall('exec');
    const error = { code: 'failed', message: 'no file /root/hunter5' } as const;
    await agent.client.answerCall({ id: pending.id, answer: { error } });
    assert.equal((await asked).status, 503);
    const request = await until('it arrives', () =>
      collector.spans.find(({ name, failed }) => failed && name === 'POST /v1/instances/:id/vm/exec'),
    );
    assert.equal(request.attributes['error.type'], '503');
    assert.equal((await arrived('call host exec')).service, 'berth-test');
    assert(!collector.received.includes('hunter'));
  });

  test('polls, heartbeats and probes are no spans', async () => {
    await agent.heartbeat();
    await client.get('/healthz');
    await client.get('/v1/me');
    await arrived('GET /v1/me');
    const names = collector.spans.map(({ name }) => name);
    assert.deepEqual(
      names.filter((name) => /poll|heartbeat|healthz|calls$/.test(name)),
      [],
    );
  });

  test('an idle stop begins a trace, which its host continues; without idle VMs there is none', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const stops = () => collector.spans.filter(({ name }) => name === 'task stop idle').length;
    await client.patch(`/v1/instances/${id}`, { idle_timeout_seconds: 60 });
    const idle = { active_at: new Date(0), started_at: new Date(0) };
    await api.db.updateTable('vms').set(idle).where('instance_id', '=', id).execute();
    await api.ingress.reportActivity({ watched_ms: 3_600_000, active: [] }, AbortSignal.timeout(10_000));
    await stopIdle(api.db, api.context.log);
    // There is nothing left to stop.
    await stopIdle(api.db, api.context.log);
    const stop = await arrived('task stop idle');
    assert.deepEqual([stop.parent_id, stop.attributes['berth.instance_id'], stops()], [null, id, 1]);
    const { trace_context } = await agent.known(id);
    assert.match(trace_context?.traceparent ?? '', new RegExp(`${stop.trace_id}-${stop.span_id}-01$`));
  });
});
