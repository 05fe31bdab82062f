/**
 * A server that closes waits for its connections, and Node ends only those that are idle at that moment: one whose answer is
 * sent just after would be waited for until it times out (72 s), and one on which nothing was ever asked without end.
 */
import type { FastifyInstance } from 'fastify';

const LOOK_MS = 50;
/** What is still being answered by then is cut off. */
const GRACE_MS = 10_000;

/** Once `app` closes, its connections end as soon as they are idle, and all of them after `grace_ms`. */
export function endConnectionsAtClose(app: FastifyInstance, grace_ms = GRACE_MS): void {
  app.addHook('preClose', async () => {
    const { server } = app;
    const idle = setInterval(() => server.closeIdleConnections(), LOOK_MS);
    const all = setTimeout(() => server.closeAllConnections(), grace_ms);
    const done = () => {
      clearInterval(idle);
      clearTimeout(all);
    };
    if (server.listening) server.once('close', done);
    else done();
  });
}
