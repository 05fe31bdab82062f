/**
 * The baseline of the API, as a separate process: two plain Fastify 5 handlers, one indexed select and one insert. It uses
 * Berth's database, a pool of the same size, a schema for the response, and one log line a request like Berth's. It has no
 * credential, transaction, event or audit entry.
 *
 * bare-server.ts DATABASE_URL: prints its origin on stdout; exits when its parent closes the pipe.
 */
import { randomUUID } from 'node:crypto';
import Fastify, { LogController } from 'fastify';
import pg from 'pg';
import { createLog } from '../src/shared/log.ts';

/** Like the pool of `openPool`. */
const CONNECTIONS = 20;

const pool = new pg.Pool({ connectionString: process.argv[2], max: CONNECTIONS });
await pool.query(`create table if not exists bench_requests
  (id uuid primary key, name text not null, scope text not null, created_at timestamptz not null default now())`);

const app = Fastify({
  loggerInstance: createLog('bench', 'info'),
  logController: new LogController({ disableRequestLogging: true }),
});
app.addHook('onResponse', async (request, reply) => {
  const { method, routeOptions } = request;
  const duration_ms = Math.round(reply.elapsedTime);
  request.log.info(
    { method, route: routeOptions.url ?? null, status: reply.statusCode, duration_ms },
    'request',
  );
});

const text = { type: 'string' } as const;
const time = { type: 'string', format: 'date-time' } as const;
const answer = (properties: Record<string, object>) => ({ type: 'object', properties });

app.route<{ Params: { id: string } }>({
  method: 'GET',
  url: '/instances/:id',
  schema: { response: { 200: answer({ id: text, org_id: text, name: text, created_at: time }) } },
  handler: async (request, reply) => {
    const { rows } = await pool.query('select id, org_id, name, created_at from instances where id = $1', [
      request.params.id,
    ]);
    return rows[0] ?? reply.status(404).send();
  },
});

app.route<{ Body: { name: string; scope: string } }>({
  method: 'POST',
  url: '/rows',
  schema: {
    body: { ...answer({ name: text, scope: text }), required: ['name', 'scope'] },
    response: { 201: answer({ id: text, name: text, scope: text, created_at: time }) },
  },
  handler: async (request, reply) => {
    const { name, scope } = request.body;
    const { rows } = await pool.query(
      'insert into bench_requests (id, name, scope) values ($1, $2, $3) returning id, name, scope, created_at',
      [randomUUID(), name, scope],
    );
    return reply.status(201).send(rows[0]);
  },
});

process.stdout.write(`${await app.listen({ host: '127.0.0.1', port: 0 })}\n`);
process.stdin.resume().once('end', () => process.exit());
