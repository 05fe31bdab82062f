/** The listener of HTTP ports in its process: opens its address, again and again if that is taken, and follows its certificate. */
import type { ConnectionBudget } from '../../shared/connection-budget.ts';
import { errnoOf, messageOf } from '../../shared/errors.ts';
import { pause } from '../../shared/retry.ts';
import { type CertificateFiles, followCertificate, readCertificate } from './certificate.ts';
import { HttpProxy, type HttpProxyOptions } from './http-proxy.ts';
import { HttpListener } from './listener.ts';

const REOPEN_MS = 2_000;

export interface HttpIngressOptions extends HttpProxyOptions {
  readonly listen: { readonly host: string; readonly port: number };
  readonly tls: CertificateFiles | null;
  readonly connections: ConnectionBudget;
}

export class HttpIngress {
  readonly proxy: HttpProxy;
  readonly #options: HttpIngressOptions;

  constructor(options: HttpIngressOptions) {
    this.#options = options;
    this.proxy = new HttpProxy(options);
  }

  async run(signal: AbortSignal): Promise<void> {
    await Promise.all([this.proxy.run(signal), this.#serve(signal)]);
  }

  async #serve(signal: AbortSignal): Promise<void> {
    const { tls, log } = this.#options;
    const listener = await this.#open(signal);
    if (!listener) return;
    const changed = listener.setCertificate.bind(listener);
    if (tls) await followCertificate(tls, { changed, log, signal });
    else if (!signal.aborted) await new Promise((resolve) => signal.addEventListener('abort', resolve));
    listener.destroy();
  }

  async #open(signal: AbortSignal): Promise<HttpListener | null> {
    const { listen, tls, limits, log, connections } = this.#options;
    let said = false;
    for (;;) {
      try {
        const listener = new HttpListener(
          tls && (await readCertificate(tls)),
          this.proxy,
          limits,
          connections,
        );
        await listener.listen(listen.host, listen.port);
        log.info({ host: listen.host, port: listener.port }, 'HTTP ports are open');
        return listener;
      } catch (error) {
        const why = errnoOf(error) === 'EADDRINUSE' ? 'another program uses the address' : messageOf(error);
        if (!said)
          log.error(
            { host: listen.host, port: listen.port },
            `HTTP ports cannot be opened: ${why}. Change BERTH_HTTP_LISTEN, or end that program.`,
          );
        said = true;
      }
      if (!(await pause(REOPEN_MS, signal))) return null;
    }
  }
}
