/** Sends a file that is held in memory with its compressed forms, in a form that the browser accepts. */
import type { FastifyReply, FastifyRequest } from 'fastify';

const ENCODINGS = ['br', 'gz'] as const;
export type Encoding = (typeof ENCODINGS)[number];
/** As the headers name them. */
export const TOKENS = { br: 'br', gz: 'gzip' } as const;

export interface EncodedFile {
  readonly type: string;
  readonly plain: Buffer;
  readonly encoded: Readonly<Record<Encoding, Buffer>>;
}

/** Undefined: the plain form. */
export function encodingFor(
  request: FastifyRequest,
  isThere: (encoding: Encoding) => boolean,
): Encoding | undefined {
  const accepted = String(request.headers['accept-encoding'] ?? '')
    .split(',')
    .map((each) => each.split(';')[0]?.trim());
  return ENCODINGS.find((each) => accepted.includes(TOKENS[each]) && isThere(each));
}

export function sendEncoded(file: EncodedFile, request: FastifyRequest, reply: FastifyReply): FastifyReply {
  const encoding = encodingFor(request, () => true);
  reply.type(file.type).header('vary', 'Accept-Encoding');
  if (encoding === undefined) return reply.send(file.plain);
  return reply.header('content-encoding', TOKENS[encoding]).send(file.encoded[encoding]);
}
