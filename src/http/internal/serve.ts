/** Serves the calls of `agent-api/routes.ts`: checks each body against its schema, and answers JSON, also for null. */
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { TSchema } from 'typebox';
import { problemOf } from '../../agent-api/check.ts';
import type { AgentRoute } from '../../agent-api/routes.ts';
import type { Of } from '../../agent-api/schemas.ts';
import { present } from '../../lib/assert.ts';
import { AppError } from '../../lib/errors.ts';
import type { HostId } from '../../lib/ids.ts';

/** The host that calls. */
export interface CallingHost {
  readonly id: HostId;
  /** On another machine. */
  readonly remote: boolean;
  /** It came with the credential that replaces the present one. */
  readonly is_next: boolean;
}

declare module 'fastify' {
  interface FastifyRequest {
    calling_host: CallingHost | null;
  }
}

export interface InternalCall<Body> {
  readonly body: Body;
  readonly host: CallingHost;
  readonly request: FastifyRequest;
  readonly reply: FastifyReply;
}

export function accepted(is_so: boolean): { outcome: 'accepted' | 'fenced' } {
  return { outcome: is_so ? 'accepted' : 'fenced' };
}

export function serve<Request extends TSchema, Response extends TSchema>(
  app: FastifyInstance,
  route: AgentRoute<Request, Response>,
  handle: (call: InternalCall<Of<Request>>) => Promise<Of<Response>>,
  { bodyLimit }: { readonly bodyLimit?: number } = {},
): void {
  const options = { schema: { body: route.request }, ...(bodyLimit === undefined ? {} : { bodyLimit }) };
  app.post(route.path, options, async (request, reply) => {
    const host = present(request.calling_host, 'host');
    const answer = await handle({ body: request.body as Of<Request>, host, request, reply });
    // Not by Fastify: it sends no body for null, and its serialiser is slower for unions.
    return reply.type('application/json').send(JSON.stringify(answer));
  });
}

/** For Fastify's `setValidatorCompiler`. */
export function checkedBy(schema: TSchema): (value: unknown) => { error: Error } | { value: unknown } {
  return (value) => {
    const problem = problemOf(schema, value);
    return problem === null ? { value } : { error: new AppError('INVALID_REQUEST', { message: problem }) };
  };
}
