/**
 * Runs a table of calls (`test/client/*.json`) with the TypeScript client, and compares outcomes with the table
 * (`judge`). `run_calls.py` runs the same table with the Python client, in a process of its own. The outcomes of both
 * are plain values.
 */
import assert from 'node:assert/strict';
import { type Berth, BerthError } from '../../client/src/berth.ts';

export interface Call {
  readonly does: string;
  /** The value that has the verb, such as `$vm`; default: the client. */
  readonly on?: string;
  /** In snake_case, with dots: `instances.create`. */
  readonly verb?: string;
  readonly arguments?: readonly unknown[];
  readonly options?: Readonly<Record<string, unknown>>;
  /** An operation by its name, or one whose answer is a list, with path, query and body. */
  readonly operation?: string;
  readonly list?: string;
  readonly path?: Readonly<Record<string, string>>;
  readonly query?: Readonly<Record<string, unknown>>;
  readonly body?: unknown;
  /** A part of what it returns. Of a list, each item; with `joined`, this field of all items in one text. */
  readonly gives?: unknown;
  readonly joined?: string;
  readonly fails?: Readonly<Record<string, unknown>>;
  /** Fields of the result that later calls name as `$name`; `.` is the result itself. */
  readonly keep?: Readonly<Record<string, string>>;
  readonly keep_etag?: string;
}

export interface Outcome {
  readonly gave?: unknown;
  /** `gives` of the call, with the kept values. */
  readonly wanted?: unknown;
  readonly failed?: Readonly<Record<string, unknown>>;
}

const camel = (name: string) => name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());

export async function runCalls(
  berth: Berth,
  calls: readonly Call[],
  given: Readonly<Record<string, unknown>> = {},
): Promise<Outcome[]> {
  const kept = new Map<string, unknown>(Object.entries(given));
  const outcomes: Outcome[] = [];
  for (const call of calls) {
    try {
      const returned = await start(berth, call, kept);
      const result = isStream(returned)
        ? await itemsOf(returned)
        : returned instanceof Response
          ? await returned.text()
          : returned;
      for (const [name, field] of Object.entries(call.keep ?? {}))
        kept.set(name, field === '.' ? result : (result as Record<string, unknown>)[field]);
      outcomes.push({ gave: plain(result), wanted: filled(call.gives, kept) });
    } catch (error) {
      outcomes.push({ failed: failureOf(error) });
    }
  }
  return outcomes;
}

/** The client as a table calls it: by names and inputs that are known only when it runs. */
interface AnyOperation {
  call(operation: string, input: object): Promise<unknown>;
  list(operation: string, input: object): unknown;
}

function start(berth: Berth, call: Call, kept: Map<string, unknown>): unknown {
  const fill = (value: unknown) => filled(value, kept);
  if (call.operation !== undefined || call.list !== undefined) {
    const input = { path: fill(call.path), query: fill(call.query ?? {}), body: fill(call.body) };
    const any: AnyOperation = berth;
    return call.operation === undefined
      ? any.list(camel(call.list ?? ''), input)
      : any.call(camel(call.operation), input);
  }
  const words = (call.verb ?? '').split('.').map(camel);
  const verb = words.pop() ?? '';
  let on = call.on === undefined ? berth : fill(call.on);
  for (const word of words) on = (on as Record<string, unknown>)[word];
  const { keep_etag } = call;
  const onEtag = keep_etag === undefined ? {} : { onEtag: (etag: string) => kept.set(keep_etag, etag) };
  const options = { ...(fill(call.options ?? {}) as object), ...onEtag };
  const values = [...(fill(call.arguments ?? []) as unknown[])];
  if (Object.keys(options).length > 0) values.push(options);
  return (on as Record<string, (...values: unknown[]) => unknown>)[verb]?.(...values);
}

function filled(value: unknown, kept: Map<string, unknown>): unknown {
  if (typeof value === 'string') return value.startsWith('$') ? kept.get(value.slice(1)) : value;
  if (Array.isArray(value)) return value.map((each) => filled(each, kept));
  if (value === null || typeof value !== 'object') return value;
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, filled(each, kept)]));
}

const isStream = (value: unknown): value is AsyncIterable<unknown> =>
  typeof value === 'object' && value !== null && Symbol.asyncIterator in value;

/** Bytes are text; a handle is its id. */
function plain(value: unknown): unknown {
  if (value === undefined || value === null) return null;
  if (value instanceof Uint8Array) return new TextDecoder().decode(value);
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value !== 'object') return value;
  if (Object.getPrototypeOf(value) !== Object.prototype) return { id: (value as { id?: unknown }).id };
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, plain(each)]));
}

async function itemsOf(stream: AsyncIterable<unknown>): Promise<unknown[]> {
  const items: unknown[] = [];
  for await (const item of stream) items.push(item);
  return items;
}

function failureOf(error: unknown): Readonly<Record<string, unknown>> {
  assert.ok(error instanceof Error);
  if (!(error instanceof BerthError)) return { error: error.name, message: error.message };
  const { name, status, code, details, message, request_id, retry_after_seconds } = error;
  const has_request_id = request_id !== null;
  return { error: name, status, code, details, message, has_request_id, retry_after_seconds };
}

/** @throws AssertionError */
export function judge(call: Call, outcome: Outcome | undefined): void {
  const said = `${call.does}: ${JSON.stringify(outcome)?.slice(0, 1_000)}`;
  assert.ok(outcome, said);
  if (call.fails !== undefined) {
    assertPart(outcome.failed, call.fails, said);
    return;
  }
  assert.equal(outcome.failed, undefined, said);
  if (call.gives === undefined) return;
  const { joined } = call;
  const gave =
    joined === undefined
      ? outcome.gave
      : (outcome.gave as Record<string, string>[]).map((each) => each[joined]).join('');
  assertPart(gave, outcome.wanted, said);
}

/** Of an object, the fields that are wanted; of a list, as many items. A text between slashes is a pattern. */
function assertPart(actual: unknown, wanted: unknown, said: string): void {
  if (typeof wanted === 'string' && /^\/.*\/$/.test(wanted))
    assert.match(String(actual), new RegExp(wanted.slice(1, -1)), said);
  else if (typeof wanted !== 'object' || wanted === null) assert.deepEqual(actual, wanted, said);
  else {
    if (Array.isArray(wanted)) assert.equal((actual as unknown[])?.length, wanted.length, said);
    for (const [name, each] of Object.entries(wanted))
      assertPart((actual as Record<string, unknown>)?.[name], each, said);
  }
}
