/**
 * Tracks what the running work is done for: the id of the API request, and the OpenTelemetry span. Both follow
 * asynchronous calls, appear in log lines, and go to other processes as a {@link TraceContext}. Without a tracer
 * (`useTracer`) there are no spans, and `traced` only runs its work; launcher/send-traces.ts installs one.
 *
 * Invariants:
 * - A span has names that Berth defines, ids and numbers, and no text of users, guests or errors.
 * - When a {@link Work} has ended, its ids are no longer used: listeners and timers that outlive it are not its work.
 */
import { AsyncLocalStorage } from 'node:async_hooks';
import { AppError } from './errors.ts';

/** In messages and in the database. */
export interface TraceContext {
  readonly request_id?: string;
  /** As W3C's header: `00-TRACE-SPAN-FLAGS`. */
  readonly traceparent?: string;
}

export type SpanKind = 'internal' | 'server' | 'client';
/** Those without a value are left out. */
export type Attributes = Readonly<Record<string, string | number | boolean | null | undefined>>;

export interface Span {
  readonly trace_id: string;
  readonly span_id: string;
  readonly traceparent: string;
  note(attributes: Attributes): void;
  /** `error`: the kind of a failure; null: none. */
  end(error: string | null): void;
}

export interface Tracer {
  /** `parent`: its {@link TraceContext.traceparent}; null: the span begins a trace. */
  begin(name: string, kind: SpanKind, attributes: Attributes, parent: string | null): Span;
}

export const TRACEPARENT = '^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$';
export const REQUEST_ID = '^req_[0-9a-f]{24}$';
const [traceparent_pattern, request_id_pattern] = [new RegExp(TRACEPARENT), new RegExp(REQUEST_ID)];

const current = new AsyncLocalStorage<Work>();
let tracer: Tracer | null = null;

/** From now on, for the whole process; null: off. */
export function useTracer(used: Tracer | null): void {
  tracer = used;
}

export interface WorkOptions {
  /** Of its span; null: it has none. */
  readonly name: string | null;
  readonly kind?: SpanKind;
  readonly attributes?: Attributes;
  /** What it is done for; null: for itself, so its span begins a trace. */
  readonly context: TraceContext | null | undefined;
}

/** Work that may have a span. Who begins it ends it. */
export class Work {
  #request_id: string | null;
  #span: Span | null;

  constructor({ name, kind = 'internal', attributes = {}, context }: WorkOptions) {
    this.#request_id = context?.request_id ?? null;
    this.#span =
      name === null || tracer === null
        ? null
        : tracer.begin(
            name,
            kind,
            { 'berth.request_id': this.#request_id, ...attributes },
            context?.traceparent ?? null,
          );
  }

  get context(): TraceContext {
    return {
      ...(this.#request_id === null ? {} : { request_id: this.#request_id }),
      ...(this.#span === null ? {} : { traceparent: this.#span.traceparent }),
    };
  }

  get is_traced(): boolean {
    return this.#span !== null;
  }

  get log_fields(): Record<string, string> {
    return {
      ...(this.#request_id === null ? {} : { request_id: this.#request_id }),
      ...(this.#span === null ? {} : { trace_id: this.#span.trace_id, span_id: this.#span.span_id }),
    };
  }

  run<T>(work: () => T): T {
    return current.run(this, work);
  }

  note(attributes: Attributes): void {
    this.#span?.note(attributes);
  }

  end(error: string | null = null): void {
    this.#span?.end(error);
    this.#span = null;
    this.#request_id = null;
  }
}

type Noted<T> = (note: (attributes: Attributes) => void) => Promise<T>;

/** Runs `work` in a span of its own, if it has a name and there are spans. */
export async function inWork<T>(options: WorkOptions, work: Noted<T>): Promise<T> {
  const own = new Work(options);
  let error: string | null = null;
  try {
    return await own.run(() => work((attributes) => own.note(attributes)));
  } catch (thrown) {
    error = kindOf(thrown);
    throw thrown;
  } finally {
    own.end(error);
  }
}

/** Runs `work` in a part of the present span; where there is none, only runs it. */
export function traced<T>(
  name: string,
  attributes: Attributes,
  work: Noted<T>,
  kind: SpanKind = 'internal',
): Promise<T> {
  const outer = current.getStore();
  if (!outer?.is_traced) return work(() => undefined);
  return inWork({ name, kind, attributes, context: outer.context }, work);
}

/** What other processes need to go on with the present work; null: nothing. */
export function traceContext(): TraceContext | null {
  const context = current.getStore()?.context ?? {};
  return context.request_id === undefined && context.traceparent === undefined ? null : context;
}

/** As fields of a log line. */
export function traceFields(): Record<string, string> {
  return current.getStore()?.log_fields ?? {};
}

/** As headers of a request to another process of ours. */
export function traceHeaders(): Record<string, string> {
  const { request_id, traceparent } = traceContext() ?? {};
  return {
    ...(request_id === undefined ? {} : { 'x-request-id': request_id }),
    ...(traceparent === undefined ? {} : { traceparent }),
  };
}

/** What {@link traceHeaders} has made, or a stranger; malformed ones are ignored. */
export function traceContextOf(headers: Readonly<Record<string, unknown>>): TraceContext {
  const { 'x-request-id': request_id, traceparent } = headers;
  return {
    ...(typeof request_id === 'string' && request_id_pattern.test(request_id) ? { request_id } : {}),
    ...(typeof traceparent === 'string' && traceparent_pattern.test(traceparent) ? { traceparent } : {}),
  };
}

/** Its message may have a path of a guest, or an address. */
function kindOf(thrown: unknown): string {
  if (thrown instanceof AppError) return thrown.code;
  return thrown instanceof Error ? thrown.name : 'Error';
}
