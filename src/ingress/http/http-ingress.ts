/**
 * Runs the HTTP ports of the ingress: opens their listener, and reads the TLS certificate again when its files change.
 * If the listener cannot be opened, for example because another program has the address, it tries again every two
 * seconds. A certificate that does not fit its key is not used.
 */
import { readFile, stat } from 'node:fs/promises';
import { createSecureContext } from 'node:tls';
import type { ConnectionBudget } from '../../shared/connection-budget.ts';
import { errnoOf, messageOf } from '../../shared/errors.ts';
import type { Log } from '../../shared/log.ts';
import { pause } from '../../shared/retry.ts';
import { HttpProxy, type HttpProxyOptions } from './http-proxy.ts';
import { type Certificate, HttpListener } from './listener.ts';

const LOOK_MS = 2_000;

export interface CertificateFiles {
  readonly cert_path: string;
  readonly key_path: string;
}

/** @throws what is wrong with the files */
export async function readCertificate({ cert_path, key_path }: CertificateFiles): Promise<Certificate> {
  const [cert, key] = await Promise.all([readFile(cert_path), readFile(key_path)]);
  createSecureContext({ cert, key });
  return { cert, key };
}

/** Calls `changed` for each new pair, until `signal` aborts. */
export async function followCertificate(
  files: CertificateFiles,
  { changed, log, signal }: { changed: (certificate: Certificate) => void; log: Log; signal: AbortSignal },
): Promise<void> {
  let seen = await versionOf(files);
  while (await pause(LOOK_MS, signal)) {
    const version = await versionOf(files);
    if (version === seen) continue;
    try {
      changed(await readCertificate(files));
      log.info('the certificate of HTTP ports was read again');
    } catch (error) {
      // The other file may be written next.
      log.error(
        { reason: messageOf(error) },
        'the new certificate of HTTP ports cannot be used; the last stays',
      );
    }
    seen = version;
  }
}

/** Changes when a file is written or replaced. */
async function versionOf({ cert_path, key_path }: CertificateFiles): Promise<string> {
  const all = await Promise.all(
    [cert_path, key_path].map((path) => stat(path, { bigint: true }).catch(() => null)),
  );
  return all
    .map((each) => (each ? `${each.dev}.${each.ino}.${each.size}.${each.mtimeNs}` : 'none'))
    .join(' ');
}

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
