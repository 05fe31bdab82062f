/** The API of execs, with a scripted agent in place of the host. test/host and test/guest have the guest's side. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import type { Duplex } from 'node:stream';
import { describe, test } from 'node:test';
import { WebSocket } from 'ws';
import { Berth } from '../../client/src/berth.ts';
import {
  type ExecEnd,
  FRAME,
  offsetBytes,
  StreamFrames,
  streamFrame,
} from '../../src/protocol/exec-types.ts';
import { type ExecId, newId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { assertError, withoutRequestId } from '../support/expect.ts';
import { makeKey } from '../support/people.ts';
import { instanceIn } from '../support/states.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile({ context: { heartbeat_ms: 50 } });
const owner = await api.person();
const client = api.as(owner);
const { agent } = api;
const running = await instanceIn(api, owner, 'running');
const execs = `/v1/instances/${running.id}/execs`;

interface ExecOut {
  readonly id: ExecId;
  readonly state: string;
  readonly exit_code: number | null;
  readonly signal: string | null;
  readonly timed_out: boolean;
  readonly output_bytes: number;
}

const STARTED = { result: { refused: null } };

async function started(body: object = {}): Promise<ExecOut> {
  const asked = client.post<ExecOut>(execs, { command: ['true'], ...body });
  const { id } = await agent.nextCall('exec_start');
  await agent.client.answerCall({ id, answer: STARTED });
  const { status, body: made, text } = await asked;
  assert.equal(status, 201, text);
  return made;
}

function endOf(exit_code: number | null, signal: number | null = null): ExecEnd {
  return { state: 'exited', exit_code, signal, timed_out: false, ended_at: new Date().toISOString() };
}

const never = new AbortController().signal;
const reported = (exec_id: ExecId, end: ExecEnd | null, output_bytes = 0) =>
  agent.client.reportExecs({ execs: [{ instance_id: running.id, exec_id, output_bytes, end }] }, never);

describe('create', () => {
  test('a start reaches the host with all of its words, and the exec runs', async () => {
    const body = { command: ['sh', '-c', 'x'], env: { A: 'b=c' }, cwd: '/srv', user: 'www-data' };
    const asked = client.post<ExecOut>(execs, {
      ...body,
      tty: { columns: 80, rows: 24 },
      timeout_seconds: 5,
    });
    const { id, call } = await agent.nextCall('exec_start');
    await agent.client.answerCall({ id, answer: STARTED });
    const made = await asked;
    assert.partialDeepStrictEqual(call, {
      ...{ instance_id: running.id, exec_id: made.body.id, command: body.command, environment: ['A=b=c'] },
      ...{ cwd: '/srv', user: 'www-data', tty: { columns: 80, rows: 24 }, stdin: true, timeout_ms: 5000 },
    });
    assert.partialDeepStrictEqual(made.body, { state: 'running', exit_code: null, signal: null });
    assert.equal((await client.delete(`${execs}/${made.body.id}x`)).status, 404);
    await reported(made.body.id, endOf(0));
  });
  test('a bad folder is a 400, and leaves nothing', async () => {
    const asked = client.post(execs, { command: ['true'], cwd: '/none' });
    const { id, call } = await agent.nextCall('exec_start');
    const refused = { field: 'cwd', issue: 'No such file or directory' } as const;
    await agent.client.answerCall({ id, answer: { result: { refused } } });
    assertError(await asked, 'INVALID_REQUEST', /cwd/);
    assert.equal((await client.get(`${execs}/${call.exec_id}`)).status, 404);
  });
  test('a repeated Idempotency-Key asks for the same exec, also after a lost answer', async () => {
    const headers = { headers: { 'idempotency-key': newId('exec') } };
    const first = client.post(execs, { command: ['once'] }, headers);
    const lost = await agent.nextCall('exec_start');
    await agent.client.answerCall({
      id: lost.id,
      answer: { error: { code: 'guest_silent', message: 'Silent.' } },
    });
    assertError(await first, 'UNAVAILABLE');
    const second = client.post<ExecOut>(execs, { command: ['once'] }, headers);
    const again = await agent.nextCall('exec_start');
    assert.equal(again.call.exec_id, lost.call.exec_id);
    await agent.client.answerCall({ id: again.id, answer: STARTED });
    const made = (await second).body;
    const third = await client.post<ExecOut>(execs, { command: ['once'] }, headers);
    assert.equal(third.body.id, made.id);
    await reported(made.id, endOf(0));
  });
  test('the 33rd that runs is refused; the audit log has the program alone', async () => {
    const all: ExecOut[] = [];
    for (let count = 0; count < 32; count++) all.push(await started({ command: ['sleep', 'secret-word'] }));
    assertError(await client.post(execs, { command: ['true'] }), 'QUOTA_EXCEEDED', /32 execs/);
    for (const { id } of all) await reported(id, endOf(0));
    const entries = await api.db.selectFrom('audit_log').select(['action', 'data']).execute();
    assert.ok(entries.some(({ action, data }) => action === 'exec.create' && data['program'] === 'sleep'));
    assert.doesNotMatch(JSON.stringify(entries), /secret-word/);
  });
  for (const body of [
    {},
    { command: [] },
    { command: [''] },
    { command: ['a\0b'] },
    { command: ['true'], env: { 'A=B': 'c' } },
    { command: ['true'], tty: { columns: 0, rows: 24 } },
    { command: ['true'], timeout_seconds: 0 },
    { command: ['true'], shell: true },
  ]) {
    test(`400: ${JSON.stringify(body)}`, async () => {
      assertError(await client.post(execs, body), 'INVALID_REQUEST');
    });
  }
  test('arguments, variables and the folder have so many bytes, not characters', async () => {
    const long = 'ä'.repeat(65_535);
    const most = {
      command: ['true', `${long}b`],
      env: { A: `${long.slice(1)}b` },
      cwd: `/${'ü'.repeat(2_047)}`,
    };
    await reported((await started(most)).id, endOf(0));
    const more: readonly [string, object][] = [
      ['command.1', { command: ['true', `${long}bb`] }],
      ['env.A', { command: ['true'], env: { A: long } }],
      ['cwd', { command: ['true'], cwd: `/${'ü'.repeat(2_048)}` }],
    ];
    for (const [field, body] of more) {
      const { details } = assertError(await client.post(execs, body), 'INVALID_REQUEST', /bytes in UTF-8/);
      assert.equal(details?.[0]?.field, field);
    }
  });
  test('403 for one that may only read; 404 in another organisation, as for an unknown exec', async () => {
    const billing = await api.person({ org_id: owner.org_id, role: 'billing' });
    assertError(await api.as(billing).post(execs, { command: ['true'] }), 'FORBIDDEN');
    const made = await started();
    const stranger = await api.person();
    const theirs = await api.as(stranger).get(`${execs}/${made.id}`);
    assertError(theirs, 'NOT_FOUND');
    assert.deepEqual(
      withoutRequestId(await client.get(`${execs}/${newId('exec')}`)),
      withoutRequestId(theirs),
    );
    await reported(made.id, endOf(0));
  });
  test('409 where the VM does not run', async () => {
    const off = await api.instance(owner);
    const answer = await client.post(`/v1/instances/${off.id}/execs`, { command: ['true'] });
    assertError(answer, 'VM_NOT_RUNNING');
  });
});

describe('its end', () => {
  test('an end that the host reports is final, and names a signal', async () => {
    const { id } = await started();
    await reported(id, null, 5);
    assert.partialDeepStrictEqual((await client.get<ExecOut>(`${execs}/${id}`)).body, {
      state: 'running',
      output_bytes: 5,
    });
    await reported(id, endOf(null, 15), 7);
    await reported(id, { ...endOf(3), state: 'lost' }, 9);
    const { body } = await client.get<ExecOut>(`${execs}/${id}`);
    assert.partialDeepStrictEqual(body, {
      state: 'exited',
      exit_code: null,
      signal: 'SIGTERM',
      output_bytes: 7,
    });
    assertError(await client.post(`${execs}/${id}/signal`, { signal: 'SIGTERM' }), 'CONFLICT', /ended/);
    assert.equal((await client.delete(`${execs}/${id}`)).status, 204);
  });
  test('signal, size and input reach the host', async () => {
    const { id } = await started({ tty: { columns: 80, rows: 24 } });
    const done = async (asked: Promise<{ status: number }>) => {
      const { id: call_id, call } = await agent.nextCall('exec_control');
      await agent.client.answerCall({ id: call_id, answer: { result: { outcome: 'done' } } });
      assert.equal((await asked).status, 204);
      return call.action;
    };
    assert.deepEqual(await done(client.post(`${execs}/${id}/signal`, { signal: 'SIGINT' })), {
      kind: 'signal',
      signal: 2,
    });
    const size = { columns: 100, rows: 30 };
    assert.deepEqual(await done(client.post(`${execs}/${id}/resize`, size)), { kind: 'resize', ...size });
    assert.deepEqual(await done(client.delete(`${execs}/${id}`)), { kind: 'signal', signal: 9 });
    const sent = fetch(`${api.origin}${execs}/${id}/stdin?eof=true`, {
      method: 'POST',
      headers: { authorization: `Bearer ${owner.session}`, 'content-type': 'application/json' },
      body: '{not json',
    });
    const input = { kind: 'input', data: Buffer.from('{not json').toString('base64'), eof: true };
    assert.deepEqual(await done(sent), input);
    await reported(id, endOf(null, 9));
  });
});

/** Answers the next call for a stream. */
async function streamed(): Promise<{ call: object; line: import('node:stream').Duplex }> {
  const { id, call } = await agent.nextCall('exec_stream');
  const line = await agent.client.openConsole(id);
  line.on('error', () => undefined);
  return { call, line };
}

const output = (type: number, offset: number, text: string) =>
  streamFrame(type, offsetBytes(offset), Buffer.from(text));
const exitOf = (exec_id: ExecId, end: ExecEnd, output_bytes: number) =>
  streamFrame(
    FRAME.exit,
    Buffer.from(JSON.stringify({ instance_id: running.id, exec_id, output_bytes, end })),
  );

describe('output', () => {
  test('the kept bytes, of one stream or both, with the offset of the first', async () => {
    const { id } = await started();
    const read = async (query: string) => {
      const asked = client.get(`${execs}/${id}/output${query}`);
      const { call, line } = await streamed();
      line.write(streamFrame(FRAME.attached, offsetBytes(4)));
      line.end(
        Buffer.concat([
          output(FRAME.stdout, 4, 'out'),
          output(FRAME.stderr, 7, 'err'),
          streamFrame(FRAME.end),
        ]),
      );
      const { text, headers } = await asked;
      return { call, text, offset: headers['berth-output-offset'] };
    };
    const both = await read('?offset=4');
    assert.partialDeepStrictEqual(both.call, { offset: 4, follow: false, attached: false, input: false });
    assert.deepEqual([both.text, both.offset], ['outerr', '4']);
    const err = await read('?offset=4&stream=stderr');
    assert.deepEqual([err.text, err.offset], ['err', '7']);
    // Past the end.
    const none = client.get(`${execs}/${id}/output?offset=99`);
    const { line } = await streamed();
    line.end(Buffer.concat([streamFrame(FRAME.attached, offsetBytes(99)), streamFrame(FRAME.end)]));
    const { status, text } = await none;
    assert.deepEqual([status, text], [200, '']);
    const gone = client.get(`${execs}/${id}/output`);
    const { id: call_id } = await agent.nextCall('exec_stream');
    await agent.client.answerCall({
      id: call_id,
      answer: { error: { code: 'gone', message: 'No longer kept.' } },
    });
    assertError(await gone, 'CONFLICT', /kept/);
    await reported(id, endOf(0));
  });
  test('followed: events with the next offset, and the exit, which is recorded', async () => {
    const { id } = await started();
    const headers = { authorization: `Bearer ${owner.session}` };
    const asked = fetch(`${api.origin}${execs}/${id}/output?follow=true`, { headers });
    const { call, line } = await streamed();
    // The exec waits for a slow reader that may write.
    assert.partialDeepStrictEqual(call, { follow: true, attached: true, input: false });
    line.write(Buffer.concat([streamFrame(FRAME.attached, offsetBytes(0)), output(FRAME.stdout, 0, 'hi')]));
    line.end(exitOf(id, endOf(3), 2));
    const text = await (await asked).text();
    assert.match(text, /^id: 2\nevent: stdout\ndata: aGk=\n\n/m);
    assert.match(text, /event: exit\ndata: .*"exit_code":3/);
    assert.equal((await client.get<ExecOut>(`${execs}/${id}`)).body.exit_code, 3);
  });
});

describe('output that is no longer kept', () => {
  const from = (offset: number) => streamFrame(FRAME.attached, offsetBytes(offset));
  const details = [{ field: 'offset', issue: 'lost 80, first kept 100' }];
  const get = (path: string) =>
    fetch(`${api.origin}${path}`, { headers: { authorization: `Bearer ${owner.session}` } });

  test('is a 409 that says how much is lost and where to read on, whether the reader follows or not', async () => {
    const { id } = await started();
    for (const query of ['?offset=20', '?offset=20&follow=true']) {
      const asked = client.get<{ error: { details: unknown } }>(`${execs}/${id}/output${query}`);
      const { line } = await streamed();
      line.write(Buffer.concat([from(100), output(FRAME.stdout, 100, 'rest')]));
      const answer = await asked;
      assertError(answer, 'CONFLICT', /80 bytes of the output, from offset 20 on.*offset 100/);
      assert.deepEqual(answer.body.error.details, details);
      line.destroy();
    }
    await reported(id, endOf(0));
  });
  test('ends a follower with the event gap, and breaks an answer', async () => {
    const { id } = await started();
    const asked = get(`${execs}/${id}/output?offset=16&follow=true`);
    const { line } = await streamed();
    line.write(
      Buffer.concat([from(16), output(FRAME.stdout, 16, 'half'), output(FRAME.stdout, 100, 'rest')]),
    );
    const gap = 'event: gap\ndata: {"offset":100,"lost_bytes":80}\n\n';
    assert.equal(await (await asked).text(), `id: 20\nevent: stdout\ndata: aGFsZg==\n\n${gap}`);
    const kept = get(`${execs}/${id}/output?offset=16`);
    const { line: second } = await streamed();
    second.write(
      Buffer.concat([from(16), output(FRAME.stdout, 16, 'half'), output(FRAME.stdout, 100, 'rest')]),
    );
    await assert.rejects((await kept).text());
    for (const each of [line, second]) each.destroy();
    await reported(id, endOf(0));
  });
  test('is an OutputLostError of the client, from which its reader can read on; a wait for the end goes on', async () => {
    const made = await started();
    const berth = new Berth({ url: api.origin, token: owner.session });
    const handle = await berth.vm(running.id).attachExec(made.id);
    const lines: Duplex[] = [];
    const answered = async (...frames: Buffer[]) => {
      const { line } = await streamed();
      lines.push(line);
      line.write(Buffer.concat(frames));
    };
    const texts: string[] = [];
    const read = async (offset?: number) => {
      for await (const { data } of handle.output({ offset })) texts.push(Buffer.from(data).toString());
    };
    const lost = { name: 'OutputLostError', lost_bytes: 80, offset: 100 };
    const in_the_middle = assert.rejects(read(16), lost);
    await answered(from(16), output(FRAME.stdout, 16, 'half'), output(FRAME.stdout, 100, 'rest'));
    await in_the_middle;
    const at_the_beginning = assert.rejects(read(), lost);
    await answered(from(100));
    await at_the_beginning;
    const waited = handle.wait();
    await answered(from(100));
    await answered(from(100), output(FRAME.stdout, 100, 'rest'), exitOf(made.id, endOf(4), 104));
    assert.deepEqual([(await waited).exit_code, texts], [4, ['half']]);
    for (const each of lines) each.destroy();
  });
  test('ends a stream with the message gap and 4409', async () => {
    const { id } = await started();
    const socket = new WebSocket(`${api.origin.replace('http', 'ws')}${execs}/${id}/stream?offset=20`, {
      headers: { authorization: `Bearer ${owner.session}` },
    });
    const seen: string[] = [];
    socket.on('message', (data) => seen.push(String(data)));
    const { line } = await streamed();
    await once(socket, 'open');
    line.write(Buffer.concat([from(100), output(FRAME.stdout, 100, 'rest')]));
    const [code] = await once(socket, 'close');
    assert.deepEqual([code, seen], [4409, ['{"type":"gap","offset":100,"lost_bytes":80}']]);
    line.destroy();
    await reported(id, endOf(0));
  });
});

test('the exec does not wait for a follower that may only read', async () => {
  const { id } = await started();
  const { key } = await makeKey(api.db, owner, 'vm:read');
  const headers = { authorization: `Bearer ${key}` };
  const asked = fetch(`${api.origin}${execs}/${id}/output?follow=true`, { headers });
  const { call, line } = await streamed();
  assert.partialDeepStrictEqual(call, { follow: true, attached: false, input: false });
  line.end(Buffer.concat([streamFrame(FRAME.attached, offsetBytes(0)), exitOf(id, endOf(0), 0)]));
  assert.match(await (await asked).text(), /event: exit/);
});

describe('stream', () => {
  const dial = (path: string, token: string | null = owner.session) =>
    new WebSocket(`${api.origin.replace('http', 'ws')}${path}`, {
      headers: token === null ? {} : { authorization: `Bearer ${token}` },
    });
  function messages(socket: WebSocket): string[] {
    const found: string[] = [];
    socket.on('message', (data: Buffer, is_binary) =>
      found.push(is_binary ? `${data[0]}:${data.subarray(1)}` : String(data)),
    );
    return found;
  }

  test('output, input and the exit, which ends it with 1000', async () => {
    const { id } = await started({ stdin: true });
    const socket = dial(`${execs}/${id}/stream?offset=3`);
    const seen = messages(socket);
    const { call, line } = await streamed();
    assert.partialDeepStrictEqual(call, { offset: 3, follow: true, attached: true });
    await once(socket, 'open');
    line.write(Buffer.concat([streamFrame(FRAME.attached, offsetBytes(3)), output(FRAME.stderr, 3, 'err')]));
    const got: { type: number; payload: Buffer }[] = [];
    const frames = new StreamFrames();
    line.on('data', (chunk: Buffer) => got.push(...frames.push(chunk)));
    socket.send(Buffer.from('\0in'), { binary: true });
    for (const each of [
      { type: 'eof' },
      { type: 'resize', columns: 3, rows: 4 },
      { type: 'signal', signal: 'SIGHUP' },
    ])
      socket.send(JSON.stringify(each));
    await until('all has arrived', async () => got.length === 4);
    assert.deepEqual(
      got.map(({ type, payload }) => [type, payload.toString('hex')]),
      [
        [FRAME.input, Buffer.from('in').toString('hex')],
        [FRAME.eof, ''],
        [FRAME.resize, '00030004'],
        [FRAME.signal, '01'],
      ],
    );
    line.write(exitOf(id, endOf(0), 6));
    const [code] = await once(socket, 'close');
    assert.equal(code, 1000);
    assert.deepEqual(seen.slice(0, 2), ['{"type":"attached","offset":3}', '2:err']);
    assert.partialDeepStrictEqual(JSON.parse(seen[2] ?? ''), {
      type: 'exit',
      exec: { id, state: 'exited', exit_code: 0 },
    });
  });
  test('cut off by its host it ends with 1001; lost, with the exit', async () => {
    const { id } = await started();
    const socket = dial(`${execs}/${id}/stream`);
    const { line } = await streamed();
    await once(socket, 'open');
    line.destroy();
    assert.equal((await once(socket, 'close'))[0], 1001);
    const again = dial(`${execs}/${id}/stream`);
    const seen = messages(again);
    await streamed();
    await once(again, 'open');
    await reported(id, { ...endOf(null), state: 'lost' });
    assert.equal((await once(again, 'close'))[0], 1000);
    assert.match(seen.at(-1) ?? '', /"state":"lost"/);
  });
  test('a reader that closes with 1000 leaves, and one that vanishes is lost', async () => {
    const { id } = await started({ stdin: true });
    for (const [end, expected] of [
      [(socket: WebSocket) => socket.close(1000), [FRAME.input, FRAME.leave]],
      [(socket: WebSocket) => socket.terminate(), [FRAME.input]],
    ] as const) {
      const socket = dial(`${execs}/${id}/stream`);
      const { call, line } = await streamed();
      assert.partialDeepStrictEqual(call, { attached: true, input: true });
      await once(socket, 'open');
      const frames = new StreamFrames();
      const got: number[] = [];
      line.on('data', (chunk: Buffer) => got.push(...frames.push(chunk).map(({ type }) => type)));
      // Says that input will come over this stream.
      socket.send(Buffer.of(0), { binary: true });
      await until('it has arrived', () => got.length === 1);
      end(socket);
      await once(line, 'end');
      assert.deepEqual(got, expected);
      line.destroy();
    }
    await reported(id, endOf(0));
  });
  test('a key that may only read gets the output and sends nothing', async () => {
    const { id } = await started();
    const { key } = await makeKey(api.db, owner, 'vm:read');
    const socket = dial(`${execs}/${id}/stream`, key);
    const { call } = await streamed();
    assert.partialDeepStrictEqual(call, { attached: false });
    await once(socket, 'open');
    socket.send(JSON.stringify({ type: 'eof' }));
    assert.equal((await once(socket, 'close'))[0], 1008);
    await reported(id, endOf(0));
  });
  test('a ticket opens one stream, to this exec alone', async () => {
    const { id } = await started();
    const other = await started();
    const { body } = await client.post<{ ticket: string }>(`${execs}/${id}/ticket`);
    const refused = async (socket: WebSocket) => {
      socket.on('error', () => undefined);
      const [, response] = await once(socket, 'unexpected-response');
      response.resume();
      socket.terminate();
      return response.statusCode;
    };
    assert.equal(await refused(dial(`${execs}/${other.id}/stream?ticket=${body.ticket}`, null)), 401);
    const socket = dial(`${execs}/${id}/stream?ticket=${body.ticket}`, null);
    const { line } = await streamed();
    await once(socket, 'open');
    line.write(exitOf(id, endOf(0), 0));
    assert.equal((await once(socket, 'close'))[0], 1000);
    assert.equal(await refused(dial(`${execs}/${id}/stream?ticket=${body.ticket}`, null)), 401);
    await reported(other.id, endOf(0));
  });
});

describe('a start without an answer', () => {
  test('is a 503 that names the exec, which is found once it runs', async () => {
    const asked = client.post<{ error: { details: unknown } }>(execs, { command: ['late'] });
    const { id: call_id, call } = await agent.nextCall('exec_start');
    const error = { code: 'guest_silent', message: 'Silent.' } as const;
    await agent.client.answerCall({ id: call_id, answer: { error } });
    const answer = await asked;
    assertError(answer, 'UNAVAILABLE', new RegExp(`Silent. The command may run .* as ${call.exec_id}`));
    assert.deepEqual(answer.body.error.details, [{ field: 'exec_id', issue: call.exec_id }]);
    assert.equal(answer.headers['retry-after'], '60', 'clients do not ask again for minutes');
    // Its supervisor goes on an hour later, and others were started meanwhile.
    const started_at = new Date(Date.now() - 3_600_000);
    await api.db.updateTable('execs').set({ started_at }).where('id', '=', call.exec_id).execute();
    const other = await started();
    await reported(call.exec_id, null);
    assert.equal((await client.get<ExecOut>(`${execs}/${call.exec_id}`)).body.state, 'running');
    for (const id of [call.exec_id, other.id]) await reported(id, endOf(0));
  });
});
