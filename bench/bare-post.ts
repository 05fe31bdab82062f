/** What webhook delivery is measured beside: a loop that posts, with undici and nothing else. */
import { type Dispatcher, request } from 'undici';

export interface BareLoop {
  /** Whose connections are used, and kept. */
  readonly dispatcher: Dispatcher;
  readonly origins: readonly string[];
  readonly requests: number;
  readonly in_flight: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
  /** How long after the loop's beginning each was answered, in milliseconds. */
  readonly answered?: (ms: number) => void;
}

/** Sends them all, `in_flight` at a time, in turn to each origin. @throws when one is not answered with 2xx */
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
