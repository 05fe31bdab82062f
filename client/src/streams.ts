/**
 * Reads server-sent events with fetch (HTML Living Standard, section 9.2). When the connection breaks, a stream
 * reconnects and resumes after the last event that it received. It ends with an error when its credential is no longer
 * valid, and when its signal aborts.
 */
import { BerthConnectionError, BerthError, type ErrorCode } from './errors.ts';
import { backoffMs, type CallOptions, type Input, type Transport, wait } from './transport.ts';

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

type StreamOperation = 'streamEvents' | 'streamNotifications' | 'getExecOutput';

/** As received: `text` is JSON, or base64. */
interface TextFrame {
  readonly id: string | null;
  readonly event: string;
  readonly text: string;
}

export async function* stream<K extends StreamOperation>(
  transport: Transport,
  operation: K,
  input: Input<K>,
  options: StreamOptions = {},
): AsyncGenerator<StreamFrame, void, undefined> {
  let last = options.last_event_id;
  for (let failures = 0; ; failures++) {
    try {
      const headers = last === undefined ? {} : { 'last-event-id': last };
      for await (const { id, event, text } of connection(transport, operation, input, headers, options)) {
        failures = 0;
        last = id ?? last;
        yield { id, event, data: JSON.parse(text) };
      }
    } catch (error) {
      options.signal?.throwIfAborted();
      if (endsAStream(error)) throw error;
    }
    await wait(backoffMs(Math.min(failures, 5)), options.signal);
  }
}

/** Whether a stream gives up, rather than connect again. */
export function endsAStream(error: unknown): boolean {
  if (error instanceof BerthConnectionError) return false;
  return !(error instanceof BerthError && error.status >= 429 && TRANSIENT.includes(error.code));
}

/** The statuses of a stream's ends. */
const ENDS: Readonly<Record<string, number>> = { FORBIDDEN: 403, NOT_FOUND: 404 };

function endOf({ text }: TextFrame): BerthError {
  const data = JSON.parse(text);
  const { code, message, request_id } = (data?.error ?? data ?? {}) as Record<string, string>;
  return new BerthError({
    status: ENDS[code ?? ''] ?? 401,
    code: (code ?? 'UNAUTHENTICATED') as ErrorCode,
    message: message ?? 'The stream has ended with its credential.',
    request_id: request_id ?? null,
  });
}

/** The frames of one connection. @throws BerthError when the credential or what is read has gone, BerthConnectionError, the signal's reason */
export async function* connection<K extends StreamOperation>(
  transport: Transport,
  operation: K,
  input: Input<K>,
  headers: Readonly<Record<string, string>>,
  { signal, onOpen }: StreamOptions,
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
        if (frame?.event === 'end') throw endOf(frame);
        if (frame) yield frame;
      }
    }
  } catch (cause) {
    if (cause instanceof BerthConnectionError || cause instanceof BerthError) throw cause;
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
