/** A file in memory with its compressed forms; a browser gets one that it accepts. */
import type { FastifyReply, FastifyRequest } from 'fastify';

export interface EncodedFile {
  readonly type: string;
  readonly plain: Buffer;
  readonly encoded: { readonly br: Buffer; readonly gz: Buffer };
}

const ENCODINGS = ['br', 'gz'] as const;
const TOKENS = { br: 'br', gz: 'gzip' } as const;

export function sendEncoded(file: EncodedFile, request: FastifyRequest, reply: FastifyReply): FastifyReply {
  const accepted = String(request.headers['accept-encoding'] ?? '')
    .split(',')
    .map((each) => each.split(';')[0]?.trim());
  const encoding = ENCODINGS.find((each) => accepted.includes(TOKENS[each]));
  reply.type(file.type).header('vary', 'Accept-Encoding');
  if (encoding === undefined) return reply.send(file.plain);
  return reply.header('content-encoding', TOKENS[encoding]).send(file.encoded[encoding]);
}
