/** The baseline of webhook delivery: a loop of POST requests with plain undici. */
import { type Dispatcher, request } from 'undici';

export interface BareLoop {
  /** Its connections are used, and kept open. */
  readonly dispatcher: Dispatcher;
  readonly origins: readonly string[];
  readonly requests: number;
  readonly in_flight: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
  /** For each request, milliseconds from the loop's start to the answer. */
  readonly answered?: (ms: number) => void;
}

/** Sends all requests, `in_flight` at a time, to the origins in turn. @throws when an answer is not 2xx */
export async function barePost(loop: BareLoop): Promise<void> {
  const { dispatcher, origins, requests, in_flight, headers, body, answered } = loop;
  const began_ms = performance.now();
  let next = 0;
  const postOn = async () => {
    while (next < requests) {
      const origin = origins[next++ % origins.length] ?? '';
      const answer = await request(`${origin}/hook`, { method: 'POST', headers, body, dispatcher });
      await answer.body.dump();
      answered?.(performance.now() - began_ms);
      if (answer.statusCode >= 300) throw new Error(`the receiver answered ${answer.statusCode}`);
    }
  };
  await Promise.all(Array.from({ length: in_flight }, postOn));
}
