/** What webhook delivery is measured beside: a loop that posts, with undici and nothing else. */
import { Agent, request } from 'undici';

export interface BareLoop {
  readonly origins: readonly string[];
  readonly requests: number;
  readonly in_flight: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

/** Sends them all, `in_flight` at a time, in turn to each origin. @throws when one is not answered with 2xx */
export async function barePost({ origins, requests, in_flight, headers, body }: BareLoop): Promise<void> {
  const dispatcher = new Agent();
  let next = 0;
  const loop = async () => {
    while (next < requests) {
      const origin = origins[next++ % origins.length] ?? '';
      const answer = await request(`${origin}/hook`, { method: 'POST', headers, body, dispatcher });
      await answer.body.dump();
      if (answer.statusCode >= 300) throw new Error(`the receiver answered ${answer.statusCode}`);
    }
  };
  await Promise.all(Array.from({ length: in_flight }, loop));
  await dispatcher.close();
}
