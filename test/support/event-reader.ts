/** Reads server-sent events with fetch: frames in order, comments separately. */
import assert from 'node:assert/strict';

export interface Frame {
  readonly id: string | null;
  readonly event: string;
  // biome-ignore lint/suspicious/noExplicitAny: each event has its own shape
  readonly data: any;
}

export interface EventReader {
  readonly response: Response;
  /** The frames so far. */
  readonly frames: readonly Frame[];
  /** The comments so far. */
  readonly comments: readonly string[];
  /** The next frame; undefined at the stream's end. */
  next(): Promise<Frame | undefined>;
  /** The next frames of one event. */
  nextOf(event: string, count?: number): Promise<Frame[]>;
  /** Reads to the stream's end. */
  rest(): Promise<Frame[]>;
  /** Cuts the connection. */
  cut(): Promise<void>;
}

export async function readEvents(
  url: string,
  token: string,
  headers: Record<string, string> = {},
): Promise<EventReader> {
  const aborter = new AbortController();
  const response = await fetch(url, {
    headers: { authorization: `Bearer ${token}`, accept: 'text/event-stream', ...headers },
    signal: aborter.signal,
  });
  assert.equal(response.status, 200, response.status === 200 ? '' : await response.text());
  assert.ok(response.body);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const frames: Frame[] = [];
  const comments: string[] = [];
  let held = '';
  let given = 0;

  const take = (text: string) => {
    const lines = text.split('\n');
    const value = (name: string) =>
      lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2) ?? null;
    const data = value('data');
    if (data !== null) {
      frames.push({ id: value('id'), event: value('event') ?? 'message', data: JSON.parse(data) });
    }
    comments.push(...lines.filter((line) => line.startsWith(':')));
  };
  const more = async (): Promise<boolean> => {
    const { done, value } = await reader.read();
    if (done) return false;
    const parts = (held + value).split('\n\n');
    held = parts.pop() ?? '';
    parts.forEach(take);
    return true;
  };
  const next = async (): Promise<Frame | undefined> => {
    while (given === frames.length) if (!(await more())) return undefined;
    given += 1;
    return frames[given - 1];
  };
  return {
    response,
    frames,
    comments,
    next,
    async nextOf(event, count = 1) {
      const found: Frame[] = [];
      while (found.length < count) {
        const frame = await next();
        assert.ok(frame, `the stream ended before ${count} of ${event}`);
        if (frame.event === event) found.push(frame);
      }
      return found;
    },
    async rest() {
      const found: Frame[] = [];
      for (let frame = await next(); frame; frame = await next()) found.push(frame);
      return found;
    },
    async cut() {
      aborter.abort();
      await reader.cancel().catch(() => undefined);
    },
  };
}
