/**
 * A test double of the control plane. It validates requests as the real one does and keeps those that it accepted. The
 * test decides which valid requests are refused.
 */
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';
import { ControlPlaneClient } from '../../src/protocol/client.ts';
import { ROUTES } from '../../src/protocol/routes.ts';
import { violationOf } from '../../src/protocol/schemas.ts';
import { present } from '../../src/shared/assert.ts';

export interface StrictControlPlane {
  readonly client: ControlPlaneClient;
  /** Every request, in order; `status` 200: it was accepted. */
  readonly said: readonly Said[];
  /** The bodies that were accepted at a path, without the path's prefix. */
  accepted(path: string): readonly Record<string, unknown>[];
}

export interface Said {
  readonly path: string;
  readonly text: string;
  readonly status: number;
}

export interface StrictOptions {
  /** By path, without its prefix; else an outcome. */
  readonly answers?: Readonly<Record<string, unknown>>;
  /** Of a request that fits its schema. */
  readonly statusOf?: (said: Pick<Said, 'path' | 'text'>) => number | Promise<number>;
}

export async function strictControlPlane(
  t: Pick<TestContext, 'after'>,
  { answers = {}, statusOf = () => 200 }: StrictOptions = {},
): Promise<StrictControlPlane> {
  const said: Said[] = [];
  const bodies: { path: string; body: Record<string, unknown> }[] = [];
  const server = createServer(async (request, response) => {
    const text = Buffer.concat(await request.toArray()).toString('utf8');
    const path = present(request.url, 'path').replace('/internal/v1/', '');
    const route = present(
      Object.values(ROUTES).find((each) => each.path === request.url),
      `route ${request.url}`,
    );
    const body = JSON.parse(text) as Record<string, unknown>;
    const problem = violationOf(route.request, body);
    const status = problem === null ? await statusOf({ path, text }) : 400;
    said.push({ path, text, status });
    if (status === 200) bodies.push({ path, body });
    const answer =
      status === 200 ? (answers[path] ?? { outcome: 'accepted' }) : { error: { message: problem } };
    response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(answer));
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const client = new ControlPlaneClient({ address: `http://127.0.0.1:${port}`, token: 'x' });
  t.after(async () => {
    await client.close();
    server.close().closeAllConnections();
  });
  return {
    client,
    said,
    accepted: (path) => bodies.filter((each) => each.path === path).map(({ body }) => body),
  };
}
