/**
 * Server-sent events over fetch (HTML Living Standard, section 9.2). A stream resumes by itself after its last event
 * when the connection breaks; it ends with an error when the credential does, and when its signal says so.
 */
import { BerthConnectionError, BerthError, type ErrorCode } from './errors.ts';
import {
  backoffMs,
  type CallOptions,
  type Input,
  type OperationId,
  type Transport,
  wait,
} from './transport.ts';

export interface StreamFrame {
  readonly id: string | null;
  /** `reset`: events were missed; read the list again. */
  readonly event: string;
  // biome-ignore lint/suspicious/noExplicitAny: each event has its own shape
  readonly data: any;
}

export interface StreamOptions extends Pick<CallOptions, 'signal'> {
  /** Resumes right after this event. Absent: starts now. */
  readonly last_event_id?: string | undefined;
  /** Called each time the stream is open, at first and after a cut. */
  readonly onOpen?: () => void;
  /** Called if events were missed, for example after a cut of more than 30 days: cached state may be stale. */
  readonly onReset?: () => void;
}

/** The server sends a comment every 15 s: this long nothing at all is a dead connection. */
const SILENCE_MS = 45_000;
const MAX_FRAME_BYTES = 4 * 1024 * 1024;
const TRANSIENT: readonly string[] = ['RATE_LIMITED', 'UNAVAILABLE', 'INTERNAL', 'UNEXPECTED'];

type StreamOperation = 'streamEvents' | 'streamNotifications';

export async function* stream<K extends StreamOperation>(
  transport: Transport,
  operation: K,
  input: Input<K>,
  options: StreamOptions = {},
): AsyncGenerator<StreamFrame, void, undefined> {
  let last = options.last_event_id;
  for (let failures = 0; ; failures++) {
    try {
      for await (const frame of connection(transport, operation, input, last, options)) {
        failures = 0;
        last = frame.id ?? last;
        if (frame.event === 'end') throw endOf(frame);
        yield frame;
      }
    } catch (error) {
      options.signal?.throwIfAborted();
      if (!isTransient(error)) throw error;
    }
    await wait(backoffMs(Math.min(failures, 5)), options.signal);
  }
}

/** The stream may be opened again. */
export function isTransient(error: unknown): boolean {
  if (error instanceof BerthConnectionError) return true;
  return error instanceof BerthError && error.status >= 429 && TRANSIENT.includes(error.code);
}

export function endOf({ data }: Pick<StreamFrame, 'data'>): BerthError {
  const { code, message, request_id } = (data?.error ?? data ?? {}) as Record<string, string>;
  return new BerthError({
    status: code === 'FORBIDDEN' ? 403 : 401,
    code: (code ?? 'UNAUTHENTICATED') as ErrorCode,
    message: message ?? 'The stream has ended with its credential.',
    request_id: request_id ?? null,
  });
}

async function* connection<K extends StreamOperation>(
  transport: Transport,
  operation: K,
  input: Input<K>,
  last: string | undefined,
  options: StreamOptions,
): AsyncGenerator<StreamFrame, void, undefined> {
  const headers = last === undefined ? {} : { 'last-event-id': last };
  for await (const { id, event, text } of framesOf(transport, operation, input, { ...options, headers }))
    yield { id, event, data: JSON.parse(text) };
}

export interface TextFrame {
  readonly id: string | null;
  readonly event: string;
  /** The data as sent. */
  readonly text: string;
}

/** The frames of one connection. @throws BerthError, BerthConnectionError, the signal's reason */
export async function* framesOf<K extends OperationId>(
  transport: Transport,
  operation: K,
  input: Input<K>,
  {
    signal,
    onOpen,
    headers,
  }: Pick<StreamOptions, 'signal' | 'onOpen'> & { readonly headers?: Readonly<Record<string, string>> },
): AsyncGenerator<TextFrame, void, undefined> {
  const silence = new AbortController();
  const hush = () => silence.abort(new BerthConnectionError('the stream has gone silent'));
  let timer = setTimeout(hush, SILENCE_MS);
  const response = await transport
    .send(operation, input, {
      signal: signal ? AbortSignal.any([signal, silence.signal]) : silence.signal,
      headers: { accept: 'text/event-stream', ...headers },
    })
    .finally(() => clearTimeout(timer));
  onOpen?.();
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  if (!reader) return;
  try {
    for (let held = ''; ; ) {
      timer = setTimeout(hush, SILENCE_MS);
      const { done, value } = await reader.read().finally(() => clearTimeout(timer));
      if (done) return;
      const parts = (held + value).split(/\r?\n\r?\n/);
      held = parts.pop() ?? '';
      if (held.length > MAX_FRAME_BYTES) throw new BerthConnectionError('an event without end');
      for (const part of parts) {
        const frame = frameOf(part);
        if (frame) yield frame;
      }
    }
  } catch (cause) {
    if (cause instanceof BerthConnectionError) throw cause;
    throw new BerthConnectionError('the stream broke', { cause });
  } finally {
    clearTimeout(timer);
    await reader.cancel().catch(() => undefined);
  }
}

function frameOf(text: string): TextFrame | undefined {
  let id: string | null = null;
  let event = 'message';
  const data: string[] = [];
  for (const line of text.split(/\r?\n/)) {
    // JSON leaves U+2028 and U+2029 as they are, and they end no line here.
    const [, name, value = ''] = /^([a-z]+): ?(.*)$/s.exec(line) ?? [];
    if (name === 'id') id = value;
    if (name === 'event') event = value;
    if (name === 'data') data.push(value);
  }
  return data.length === 0 ? undefined : { id, event, text: data.join('\n') };
}
