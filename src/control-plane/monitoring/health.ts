/**
 * Serves `/healthz` (this process answers), `/readyz` (the database, a host and its object store are usable) and
 * `/v1/openapi.json` (the document of the public API).
 */
import { type Static, Type } from 'typebox';
import type { AppContext } from '../context.ts';
import { isDiskFull } from '../db/disk-space.ts';
import { ping } from '../db/pool.ts';
import { listLiveHosts } from '../fleet/host-store.ts';
import type { App } from '../http/mutate.ts';
import { closed } from '../http/schemas.ts';

const Part = closed({ ok: Type.Boolean(), problem: Type.Optional(Type.String()) });
/** `accelerators`: those that the hosts' test guests have shown to work. */
const HostPart = closed({
  ok: Type.Boolean(),
  problem: Type.Optional(Type.String()),
  accelerators: Type.Optional(Type.Array(Type.String())),
});
const Readiness = closed({ ready: Type.Boolean(), database: Part, object_store: Part, host: HostPart });
/** `only=database`, for balancers: this control plane can serve. The others would be no better without a bucket or a host. */
const ReadyQuery = closed({ only: Type.Optional(Type.Literal('database')) });
type Parts = Omit<Static<typeof Readiness>, 'ready'>;

/** Whether the database, a host and the host's object store are usable now. */
export async function readiness(context: Pick<AppContext, 'db'>): Promise<Parts> {
  const unknown = { ok: false, problem: 'not known while the database is unavailable' };
  try {
    await ping(context.db);
  } catch {
    return { database: { ok: false, problem: 'not reachable' }, object_store: unknown, host: unknown };
  }
  const full = await isDiskFull(context.db);
  const database = full ? { ok: false, problem: 'no room left on its disk' } : { ok: true };
  const hosts = await listLiveHosts(context.db);
  if (hosts.length === 0) {
    const problem = 'no host agent has reported in the last seconds';
    return { database, object_store: { ok: false, problem }, host: { ok: false, problem } };
  }
  const problems = hosts.map((host) => host.facts.object_store_problem);
  const working = problems.includes(null);
  return {
    database,
    host: { ok: true, accelerators: [...new Set(hosts.map((host) => host.facts.accelerator))].toSorted() },
    object_store: working ? { ok: true } : { ok: false, problem: problems[0] ?? 'not known' },
  };
}

export function registerHealth(app: App, context: AppContext): void {
  app.route({
    method: 'GET',
    url: '/healthz',
    config: { access: 'public' },
    schema: { hide: true, response: { 200: closed({ alive: Type.Boolean() }) } },
    handler: async () => ({ alive: true }),
  });
  app.route({
    method: 'GET',
    url: '/readyz',
    config: { access: 'public' },
    schema: { hide: true, querystring: ReadyQuery, response: { 200: Readiness, 503: Readiness } },
    handler: async ({ query }, reply) => {
      const parts = await readiness(context);
      const ready =
        parts.database.ok && (query.only === 'database' || (parts.object_store.ok && parts.host.ok));
      return reply.status(ready ? 200 : 503).send({ ready, ...parts });
    },
  });
  app.route({
    method: 'GET',
    url: '/v1/openapi.json',
    config: { access: 'public' },
    schema: { hide: true },
    handler: async (_request, reply) =>
      reply.type('application/json; charset=utf-8').serializer(JSON.stringify).send(app.apiDocument()),
  });
}
