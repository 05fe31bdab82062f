/** The body of a request, in memory and bounded. */
import type { IncomingMessage } from 'node:http';
import { Failure } from './failures.ts';

/** @throws Failure too_large */
export async function readBody(request: IncomingMessage, max_bytes: number): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of request as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    if (bytes > max_bytes)
      throw new Failure('too_large', `A request here has at most ${max_bytes / 2 ** 20} MiB.`);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}
