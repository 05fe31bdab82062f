/**
 * `/mcp`: the Model Context Protocol over streamable HTTP, without sessions. Each request is served by itself: its tools call the
 * public API with its credential (`inner-fetch.ts`). Each message of a batch counts as a request. The SDK answers GET and DELETE,
 * which would be about sessions, with 405.
 */
import type { FastifyReply, FastifyRequest } from 'fastify';
import type { AppContext } from '../context.ts';
import { principalOf } from '../http/access.ts';
import { API_VERSION } from '../http/openapi/document.ts';
import type { RateLimits } from '../http/rate-limits.ts';
import { disconnectSignal } from '../http/server/disconnect.ts';
import type { App } from '../http/typed-app.ts';
import { innerFetch } from './inner-fetch.ts';

export const MCP_PATH = '/mcp';

export function registerMcp(app: App, { public_url, log }: AppContext, limits: RateLimits): void {
  app.route({
    method: ['POST', 'GET', 'DELETE'],
    url: MCP_PATH,
    config: { access: 'any', own_site: true },
    schema: { hide: true },
    handler: async (request, reply) => {
      // The request was counted as one.
      const more = Array.isArray(request.body) ? request.body.length - 1 : 0;
      if (more > 0) limits.countPrincipal(principalOf(request), reply, more);
      // Its schemas take memory that few installations need.
      const { answerMcp } = await import('../../mcp/answer-mcp.ts');
      const gone = disconnectSignal(reply);
      const fetch = innerFetch(app as never, request, gone);
      const response = await answerMcp(webRequest(request, public_url, gone), {
        body: request.body,
        api: { url: public_url, fetch, ...credentialOf(request) },
        version: API_VERSION,
        onProblem: (error) => log.debug({ request_id: request.id, err: error }, 'mcp'),
      });
      return reply.send(response as never) as FastifyReply;
    },
  });
}

/** Its body is parsed already. */
function webRequest(request: FastifyRequest, origin: string, signal: AbortSignal): Request {
  const headers = new Headers();
  for (const [name, value] of Object.entries(request.headers))
    if (typeof value === 'string') headers.set(name, value);
  return new Request(origin + MCP_PATH, { method: request.method, headers, signal });
}

function credentialOf({ headers }: FastifyRequest) {
  const [, token] = /^Bearer +(.+)$/i.exec(headers.authorization ?? '') ?? [];
  const org = headers['berth-org'];
  return {
    token,
    org: typeof org === 'string' ? org : undefined,
    user_agent: headers['user-agent'],
  };
}
