/**
 * A closing server waits for its connections, and Node ends only those that are idle at that moment. It would wait 72 s for
 * a connection that gets its answer just afterwards, and forever for one that never sent a request.
 */
import type { FastifyInstance } from 'fastify';

const CHECK_MS = 50;
/** Requests that are still being served then are cut off. */
const GRACE_MS = 10_000;

/** Ends each connection of a closing `app` as soon as it is idle, and all of them after `grace_ms`. */
export function endConnectionsAtClose(app: FastifyInstance, grace_ms = GRACE_MS): void {
  app.addHook('preClose', async () => {
    const { server } = app;
    const idle = setInterval(() => server.closeIdleConnections(), CHECK_MS);
    const all = setTimeout(() => server.closeAllConnections(), grace_ms);
    const done = () => {
      clearInterval(idle);
      clearTimeout(all);
    };
    if (server.listening) server.once('close', done);
    else done();
  });
}
