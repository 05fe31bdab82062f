/** Serves the calls of `protocol/routes.ts`: checks each body against its schema, and answers JSON, also for null. */
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { TSchema } from 'typebox';
import { problemOf } from '../../protocol/check.ts';
import type { AgentRoute } from '../../protocol/routes.ts';
import type { Of } from '../../protocol/schemas.ts';
import { present } from '../../shared/assert.ts';
import { AppError } from '../../shared/errors.ts';
import type { CallingHost, CallingIngress } from './admit.ts';

declare module 'fastify' {
  interface FastifyRequest {
    calling_host: CallingHost | null;
    calling_ingress: CallingIngress | null;
    /** Another control plane has sent it. */
    is_of_peer: boolean;
  }
}

export interface InternalCall<Body> {
  readonly body: Body;
  readonly request: FastifyRequest;
  readonly reply: FastifyReply;
}

export function accepted(is_so: boolean): { outcome: 'accepted' | 'fenced' } {
  return { outcome: is_so ? 'accepted' : 'fenced' };
}

/** A call of a host. */
export function serve<Request extends TSchema, Response extends TSchema>(
  app: FastifyInstance,
  route: AgentRoute<Request, Response>,
  handle: (call: InternalCall<Of<Request>> & { readonly host: CallingHost }) => Promise<Of<Response>>,
  limits: { readonly bodyLimit?: number } = {},
): void {
  register(
    app,
    route,
    (call) => handle({ ...call, host: present(call.request.calling_host, 'host') }),
    limits,
  );
}

/** A call of an ingress. */
export function serveIngress<Request extends TSchema, Response extends TSchema>(
  app: FastifyInstance,
  route: AgentRoute<Request, Response>,
  handle: (call: InternalCall<Of<Request>> & { readonly ingress: CallingIngress }) => Promise<Of<Response>>,
): void {
  register(app, route, (call) =>
    handle({ ...call, ingress: present(call.request.calling_ingress, 'ingress') }),
  );
}

function register<Request extends TSchema, Response extends TSchema>(
  app: FastifyInstance,
  route: AgentRoute<Request, Response>,
  handle: (call: InternalCall<Of<Request>>) => Promise<Of<Response>>,
  { bodyLimit }: { readonly bodyLimit?: number } = {},
): void {
  const options = { schema: { body: route.request }, ...(bodyLimit === undefined ? {} : { bodyLimit }) };
  app.post(route.path, options, async (request, reply) => {
    // We stood still, or waited for the database. Whoever called has repeated this elsewhere, and may have gone on since.
    if (request.raw.socket.destroyed) throw new AppError('UNAVAILABLE');
    const answer = await handle({ body: request.body as Of<Request>, request, reply });
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
