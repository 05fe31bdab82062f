/**
 * Runs the proxy of HTTP ports as a separate process, without a control plane: http-proxy-program.ts HOST:PORT…
 *
 * - It serves the hostnames `bench.localhost`, `bench-2.localhost` and `bench-3.localhost`, which belong to three
 *   instances. Each is served from the address in its place, or else from the first one.
 * - It prints its own port on stdout, and then, for each line on stdin, its memory in MiB: resident, and live on the
 *   heap.
 * - It exits when its parent closes the pipe. It needs `node --expose-gc`.
 */

import { type HttpControlPlane, HttpProxy } from '../../src/ingress/http/http-proxy.ts';
import { HttpListener } from '../../src/ingress/http/listener.ts';
import { HTTP_LIMITS } from '../../src/ingress/limits.ts';
import { createLog } from '../../src/shared/log.ts';
import { TrustedProxies } from '../../src/shared/networks.ts';
import { httpRoute } from './http-ingress.ts';

const addresses = process.argv.slice(2);
const routes = ['bench', 'bench-2', 'bench-3'].map((name) => httpRoute({ hostnames: [`${name}.localhost`] }));
const unused = () => Promise.reject(new Error('a public port of a running VM asks for nothing else'));
const client: HttpControlPlane = {
  openPort: async (asked) => {
    const at = routes.findIndex(({ instance_id }) => instance_id === asked.instance_id);
    return { outcome: 'open', address: addresses[at] ?? addresses[0] ?? '' };
  },
  ...{ authoriseHttp: unused, httpRoutes: unused, openTunnel: unused },
  ...{ redeemHttpTicket: unused, reportHttp: unused, wake: unused },
};
const proxy = new HttpProxy({
  ...{ client, limits: HTTP_LIMITS, log: createLog('bench', 'warn'), active: () => undefined },
  ...{ secure: false, trusted: new TrustedProxies([]) },
});
proxy.apply(routes);
const listener = new HttpListener(null, proxy, HTTP_LIMITS);
await listener.listen('127.0.0.1', 0);
process.stdout.write(`${listener.port}\n`);
process.stdin.on('data', () => {
  const { rss } = process.memoryUsage();
  globalThis.gc?.();
  const mib = [rss, process.memoryUsage().heapUsed].map((bytes) => (bytes / 2 ** 20).toFixed(1));
  process.stdout.write(`${mib.join(' ')}\n`);
});
process.stdin.once('end', () => process.exit());
