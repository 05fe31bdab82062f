/** One trace from the API through the agent to the object store, and log lines with its ids. */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import type { InstanceBody, VmBody } from '../support/rest-client.ts';
import { type CollectedSpan, TraceCollector } from '../support/trace-collector.ts';
import { until } from '../support/waiting.ts';

type Line = Readonly<Record<string, unknown>>;

describe('traces', { skip: CANNOT_BOOT_GUESTS, timeout: 600_000 }, () => {
  let collector: TraceCollector;
  let berth: Installation;
  let guest: GuestInstance;

  before(async () => {
    collector = await TraceCollector.start();
    berth = await Installation.start({ settings: { OTEL_EXPORTER_OTLP_ENDPOINT: collector.url } });
    guest = await GuestInstance.create(berth, 'traced');
  });
  after(async () => {
    await berth?.dispose();
    await collector?.close();
  });

  const arrived = (what: string, wanted: (span: CollectedSpan) => boolean) =>
    until(`${what} arrives`, () => collector.spans.find(wanted));
  /** The first line of that role and message with this request's id. */
  const line = (role: string, msg: string, request_id: string) =>
    until(`${role}: ${msg}`, () =>
      berth.output
        .split('\n')
        .flatMap((text) => (text.startsWith('{') ? [JSON.parse(text) as Line] : []))
        .find((each) => each['role'] === role && each['msg'] === msg && each['request_id'] === request_id),
    );
  const requestId = ({ headers }: { readonly headers: Headers }) => headers.get('x-request-id') ?? '';

  test('a start: the host’s steps are parts of the request', async () => {
    const answer = await berth.client.request<VmBody>('POST', `${guest.path}/vm`);
    assert.equal(answer.status, 202);
    const request_id = requestId(answer);
    const ready = await line('agent', 'the guest is ready', request_id);
    const awaited = await arrived('the step', ({ name }) => name === 'agent await_guest');
    assert.equal(awaited.trace_id, ready['trace_id']);
    const request = await arrived('the request', ({ span_id }) => span_id === awaited.parent_id);
    assert.deepEqual(
      [request.name, request.service, awaited.service],
      ['POST /v1/instances/:id/vm', 'berth-control-plane', 'berth-agent'],
    );
    assert.equal(request.attributes['berth.request_id'], request_id);
    assert.equal((await line('control-plane', 'request', request_id))['trace_id'], request.trace_id);
  });

  test('a flush: API, agent, object store and commit are one trace, and the log lines have its ids', async () => {
    await guest.becomes('running', ({ state, disk }) => state === 'running' && disk.generation > 0);
    const wrote = ['sh', '-c', 'echo hunter1 > /srv/hunter2; sync'];
    await berth.client.expect(200, 'POST', `${guest.path}/vm/exec`, { command: wrote });
    const answer = await berth.client.request<{ uploaded_bytes: number }>('POST', `${guest.path}/vm/flush`);
    assert.equal(answer.status, 200);
    const request_id = requestId(answer);
    const request = await arrived(
      'the request',
      (span) => span.attributes['berth.request_id'] === request_id && span.parent_id === null,
    );
    const written = await arrived(
      'the write',
      (span) => span.trace_id === request.trace_id && span.name === 'PUT object',
    );
    const commit = await arrived(
      'the commit',
      (span) => span.trace_id === request.trace_id && span.name === 'POST /internal/v1/commit',
    );
    await until('their parents arrive', () =>
      [written, commit].every((span) => collector.pathTo(span)[0] === request.name),
    );
    const way = ['POST /v1/instances/:id/vm/flush', 'agent flush', 'flush disk'];
    assert.deepEqual(collector.pathTo(written), [...way, 'PUT object']);
    assert.deepEqual(collector.pathTo(commit), [...way, 'POST /internal/v1/commit']);
    const puts = collector.spans.filter(
      ({ name, parent_id }) => name === written.name && parent_id === written.parent_id,
    );
    const bytes = puts.map(({ attributes }) => Number(attributes['berth.bytes'] ?? 0));
    assert.equal(
      bytes.reduce((sum, each) => sum + each, 0),
      answer.body.uploaded_bytes,
    );
    assert.deepEqual(
      [written.attributes['berth.instance_id'], written.attributes['berth.object_kind']],
      [guest.id, 'seg'],
    );
    for (const [role, msg] of [
      ['control-plane', 'request'],
      ['agent', 'a requested flush is done'],
    ] as const)
      assert.equal((await line(role, msg, request_id))['trace_id'], request.trace_id, role);
  });

  test('a command and a file: no command, name, content or credential is in a span', async () => {
    await arrived('the command', ({ name }) => name === 'agent call exec');
    const response = await fetch(`${berth.origin}${guest.path}/files?path=/srv/hunter3`, {
      method: 'PUT',
      headers: { authorization: `Bearer ${berth.client.token}`, 'content-type': 'application/octet-stream' },
      body: 'hunter4',
    });
    assert(response.ok, await response.text());
    await arrived('the file', ({ name }) => name === 'agent call file');
    for (const hidden of ['hunter', '/srv', '/bin/sh', berth.client.token, berth.data_dir])
      assert(!collector.received.includes(hidden), hidden);
  });

  test('without traces the request’s id is still in the lines of both', async () => {
    berth.set({ OTEL_SDK_DISABLED: 'true' });
    await berth.restart();
    await guest.becomes('running', ({ state }) => state === 'running');
    const answer = await berth.client.request<InstanceBody>('POST', `${guest.path}/vm/flush`);
    assert.equal(answer.status, 200);
    const of_agent = await line('agent', 'a requested flush is done', requestId(answer));
    const of_control_plane = await line('control-plane', 'request', requestId(answer));
    assert.deepEqual([of_agent['trace_id'], of_control_plane['trace_id']], [undefined, undefined]);
  });
});
