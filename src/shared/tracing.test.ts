import assert from 'node:assert/strict';
import { afterEach, describe, test } from 'node:test';
import { AppError } from './errors.ts';
import { createLog } from './log.ts';
import {
  inWork,
  traceContext,
  traceContextOf,
  traced,
  traceFields,
  traceHeaders,
  useTracer,
  Work,
} from './tracing.ts';

const REQUEST = `req_${'a'.repeat(24)}`;
const traceparentOf = (span: number) => `00-${'c'.repeat(32)}-${String(span).padStart(16, '0')}-01`;

interface Begun {
  readonly name: string;
  readonly parent: string | null;
  attributes: Record<string, unknown>;
  /** undefined: it has not ended. */
  error?: string | null;
}

/** Records spans, whose ids count from 1. */
function recording(): Begun[] {
  const begun: Begun[] = [];
  useTracer({
    begin: (name, _kind, attributes, parent) => {
      const span: Begun = { name, parent, attributes: { ...attributes } };
      const id = begun.push(span);
      return {
        trace_id: 'c'.repeat(32),
        span_id: String(id).padStart(16, '0'),
        traceparent: traceparentOf(id),
        note: (more) => Object.assign(span.attributes, more),
        end: (error) => {
          span.error = error;
        },
      };
    },
  });
  return begun;
}

afterEach(() => useTracer(null));

describe('without a tracer', () => {
  test('work runs, and only the id of its request goes along', async () => {
    const context = { request_id: REQUEST, traceparent: traceparentOf(9) };
    const seen = await inWork({ name: 'work', context }, () =>
      traced('part', {}, async () => [traceContext(), traceFields(), traceHeaders()]),
    );
    assert.deepEqual(seen, [{ request_id: REQUEST }, { request_id: REQUEST }, { 'x-request-id': REQUEST }]);
  });

  test('outside of any work there are no ids', async () => {
    assert.deepEqual([traceContext(), traceFields(), traceHeaders()], [null, {}, {}]);
    assert.equal(await traced('part', {}, async () => 1), 1);
  });
});

describe('with a tracer', () => {
  test('parts are children of the present span, and other processes get its ids', async () => {
    const begun = recording();
    const context = { request_id: REQUEST, traceparent: traceparentOf(9) };
    await inWork({ name: 'work', context }, async () => {
      await traced('part', { bytes: 1 }, async (note) => note({ bytes: 2 }));
      assert.deepEqual(traceContext(), { request_id: REQUEST, traceparent: traceparentOf(1) });
    });
    assert.deepEqual(begun, [
      {
        name: 'work',
        parent: traceparentOf(9),
        attributes: { 'berth.request_id': REQUEST },
        error: null,
      },
      {
        name: 'part',
        parent: traceparentOf(1),
        attributes: { 'berth.request_id': REQUEST, bytes: 2 },
        error: null,
      },
    ]);
  });

  test('what only is a part begins no trace', async () => {
    const begun = recording();
    await traced('part', {}, async () => undefined);
    assert.deepEqual(begun, []);
  });

  test('a failure is told by its kind, without its message', async () => {
    const begun = recording();
    const failing = (error: Error) =>
      assert.rejects(
        inWork({ name: 'work', context: null }, () => Promise.reject(error)),
        error,
      );
    await failing(new AppError('CONFLICT', { message: '/etc/shadow' }));
    await failing(new TypeError('/etc/shadow'));
    assert.deepEqual(
      begun.map(({ error }) => error),
      ['CONFLICT', 'TypeError'],
    );
    assert.doesNotMatch(JSON.stringify(begun), /shadow/);
  });

  test('what outlives its work has none of its ids, and makes no spans of it', async () => {
    const begun = recording();
    const later = Promise.withResolvers<void>();
    let seen: Promise<unknown> | undefined;
    await inWork({ name: 'work', context: { request_id: REQUEST } }, async () => {
      seen = later.promise.then(() => traced('late', {}, async () => [traceContext(), traceFields()]));
    });
    later.resolve();
    assert.deepEqual(await seen, [null, {}]);
    assert.deepEqual(
      begun.map(({ name }) => name),
      ['work'],
    );
  });

  test('log lines carry the ids', async () => {
    recording();
    const lines: string[] = [];
    const log = createLog('test', 'info', { write: (line) => lines.push(line) });
    const work = new Work({ name: 'work', context: { request_id: REQUEST } });
    work.run(() => log.info('in it'));
    work.end();
    work.run(() => log.info('after it'));
    const [within, after] = lines.map((line) => JSON.parse(line) as Record<string, unknown>);
    assert.equal(within?.['request_id'], REQUEST);
    assert.equal(within?.['trace_id'], 'c'.repeat(32));
    assert.equal(within?.['span_id'], '0'.repeat(15).concat('1'));
    assert.equal(after?.['request_id'] ?? after?.['trace_id'], undefined);
  });
});

test('malformed ids of a stranger are ignored', () => {
  const good = { 'x-request-id': REQUEST, traceparent: traceparentOf(1) };
  assert.deepEqual(traceContextOf(good), { request_id: REQUEST, traceparent: traceparentOf(1) });
  const bad = [
    undefined,
    '',
    `00-${'0'.repeat(32)}-${'1'.repeat(16)}-01`,
    `00-${'c'.repeat(32)}-${'0'.repeat(16)}-01`,
    `ff-${'c'.repeat(32)}-${'1'.repeat(16)}-01`,
    `${traceparentOf(1)}\n`,
    traceparentOf(1).toUpperCase(),
    [traceparentOf(1)],
  ];
  for (const each of bad)
    assert.deepEqual(traceContextOf({ traceparent: each, 'x-request-id': 'req_\n' }), {}, String(each));
});
