/** Sends signed requests to a bucket, unchanged or altered, as a hostile host could. */
import { createHash } from 'node:crypto';
import { request } from 'undici';
import type { ObjectRequest, SignedRequest } from '../../src/protocol/types.ts';

export interface Sent {
  readonly method: string;
  readonly url: string;
  readonly headers: Record<string, string>;
  readonly body?: Buffer;
}

export const headersOf = ({ headers }: SignedRequest) =>
  Object.fromEntries(headers.map(({ name, value }) => [name, value]));
export const asSigned = (method: string, signed: SignedRequest, body?: Buffer): Sent => ({
  ...{ method, url: signed.url, headers: headersOf(signed) },
  ...(body ? { body } : {}),
});

export async function send({ method, url, headers, body }: Sent) {
  const answer = await request(url, { method: method as 'GET', headers, body: body ?? null }).catch(
    () => null,
  );
  const bytes = answer ? Buffer.from(await answer.body.arrayBuffer()) : Buffer.alloc(0);
  return { status: answer?.statusCode ?? 0, body: bytes };
}

export const sha256 = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex');
export const writing = (key: string, body: Buffer): ObjectRequest => ({
  ...{ method: 'PUT', key, size_bytes: body.length, sha256: sha256(body) },
});
