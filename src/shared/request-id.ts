import { drawRandom } from './random.ts';

/** A new request id: `req_` and 96 random bits. */
export function newRequestId(): string {
  return `req_${drawRandom(12).toString('hex')}`;
}
