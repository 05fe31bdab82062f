/** Generates load over HTTP/1.1 with a fixed number of connections for a fixed time, one request at a time on each. */
import { randomUUID } from 'node:crypto';
import { Pool } from 'undici';
import { present } from '../src/shared/assert.ts';
import { quantile } from './figure.ts';

export interface Target {
  readonly origin: string;
  readonly method: 'GET' | 'POST';
  /** Requested in turn. */
  readonly requests: readonly {
    readonly path: string;
    readonly headers: Record<string, string>;
  }[];
  readonly body?: string;
  /** Each request carries a new Idempotency-Key, as our own client sends it. */
  readonly idempotent?: boolean;
  /** The expected status. Any other one ends the measurement. */
  readonly status: number;
}

export interface Load {
  /** How many were sent, those that opened the connections included. */
  readonly requests: number;
  readonly per_second: number;
  readonly p50_ms: number;
  readonly p99_ms: number;
}

/** Connections are open and warm before the clock starts. @throws when an answer is not the expected one */
export async function load(
  target: Target,
  connections: number,
  duration_ms: number,
  signal: AbortSignal,
): Promise<Load> {
  const { origin, method, requests, body = null, idempotent = false, status } = target;
  let sent = 0;
  const pool = new Pool(origin, { connections, pipelining: 1 });
  const once = async () => {
    const request = present(requests[sent++ % requests.length], 'a request');
    const { path } = request;
    const headers = idempotent ? { ...request.headers, 'idempotency-key': randomUUID() } : request.headers;
    const answer = await pool.request({ path, method, headers, body });
    if (answer.statusCode === status) return answer.body.dump();
    throw new Error(`${method} ${path}: ${answer.statusCode} ${await answer.body.text()}`);
  };
  const times_ms: number[] = [];
  try {
    await Promise.all(Array.from({ length: connections }, once));
    const started_ms = performance.now();
    const ends_ms = started_ms + duration_ms;
    await Promise.all(
      Array.from({ length: connections }, async () => {
        for (let sent_ms = performance.now(); sent_ms < ends_ms; ) {
          signal.throwIfAborted();
          await once();
          const done_ms = performance.now();
          times_ms.push(done_ms - sent_ms);
          sent_ms = done_ms;
        }
      }),
    );
    const took_s = (performance.now() - started_ms) / 1000;
    return {
      requests: sent,
      per_second: times_ms.length / took_s,
      p50_ms: quantile(times_ms, 0.5),
      p99_ms: quantile(times_ms, 0.99),
    };
  } finally {
    await pool.destroy();
  }
}
