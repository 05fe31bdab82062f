/** The process `ingress`: serves the SSH ports and HTTP ports of all instances. */
import { mkdir } from 'node:fs/promises';
import type { Config } from '../../config/config.ts';
import { type Paths, pathsIn } from '../../config/paths.ts';
import { httpEndpoint } from '../../config/weak-settings.ts';
import { HttpIngress } from '../../ingress/http/http-ingress.ts';
import { HTTP_LIMITS, type HttpLimits, httpLimitsWithin, sshLimitsWithin } from '../../ingress/limits.ts';
import { Ingress } from '../../ingress/ssh-ingress.ts';
import { ControlPlaneClient } from '../../protocol/client.ts';
import { logNegotiated } from '../../protocol/protocol.ts';
import { ConnectionBudget, openFilesLimit } from '../../shared/connection-budget.ts';
import { reportThrows } from '../../shared/contain.ts';
import type { Log } from '../../shared/log.ts';
import { TrustedProxies } from '../../shared/networks.ts';
import { readIngressSecret } from '../data-folder.ts';
import { keepControlPlanes, readControlPlanes, readIngressToken } from '../join.ts';

export interface IngressOptions {
  readonly config: Config;
  readonly log: Log;
  readonly signal: AbortSignal;
}

export async function runIngress({ config, log, signal }: IngressOptions): Promise<void> {
  reportThrows((err) =>
    log.error({ err }, 'a handler of a connection failed; only that connection was ended'),
  );
  const paths = pathsIn(config.data_dir);
  const client = await clientOf(config, paths, log);
  const { listen, tls, domain, url } = config.http;
  const endpoint = httpEndpoint({ domain, listen_port: listen.port, tls: tls !== null, url });
  const trusted = new TrustedProxies(config.trusted_proxies);
  const by_source = {
    per_source: config.connections_per_address,
    isProxy: (address: string) => trusted.has(address),
    log,
  };
  const limits = httpLimits(log);
  const http = new HttpIngress({
    ...{ client, log, listen, tls, limits, trusted, secure: endpoint.scheme === 'https' },
    connections: new ConnectionBudget({ ...by_source, most: limits.connections }),
    active: () => ssh.noteActive(),
  });
  const ssh = new Ingress({
    ...{ listen: config.ssh.listen, client, log, by_source, limits: sshLimitsWithin(openFilesLimit()) },
    others: () => http.proxy.ports,
  });
  await Promise.all([ssh.run(signal), http.run(signal)]);
  await client.close();
}

/** Knows the control planes, and has this ingress's token. */
async function clientOf({ ingress_join }: Config, paths: Paths, log: Log): Promise<ControlPlaneClient> {
  if (ingress_join === null) {
    const token = await readIngressSecret(paths);
    return new ControlPlaneClient({ address: `unix:${paths.agent_api_socket}`, token }, logNegotiated(log));
  }
  const { control_plane, token_path } = ingress_join;
  const { token, fingerprint } = await readIngressToken(token_path);
  // Where no folder can be made, the list is not kept.
  await mkdir(paths.run, { recursive: true, mode: 0o700 }).catch(() => undefined);
  const known = await readControlPlanes(paths, fingerprint);
  return new ControlPlaneClient(
    { address: control_plane, token, fingerprint, known },
    logNegotiated(log),
    keepControlPlanes(paths, fingerprint, log),
  );
}

function httpLimits(log: Log): HttpLimits {
  const open_files = openFilesLimit();
  const limits = httpLimitsWithin(open_files);
  const { connections } = limits;
  if (connections < HTTP_LIMITS.connections)
    log.warn(
      { open_files, connections },
      `HTTP ports have at most ${connections} connections instead of ${HTTP_LIMITS.connections}, because this process may open only ${open_files} files. Raise its limit to 65536: LimitNOFILE, ulimit -Hn, or docker run --ulimit nofile.`,
    );
  return limits;
}
