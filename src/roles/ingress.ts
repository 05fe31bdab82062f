/** The process `ingress`: every instance's SSH port. */
import { ControlPlaneClient } from '../agent-api/client.ts';
import { logNegotiated } from '../agent-api/log-negotiated.ts';
import type { Config } from '../config/config.ts';
import { pathsIn } from '../config/paths.ts';
import { Ingress } from '../ingress/ingress.ts';
import { readSecrets } from '../launch/data-folder.ts';
import type { Log } from '../lib/log.ts';

export interface IngressOptions {
  readonly config: Config;
  readonly log: Log;
  readonly signal: AbortSignal;
}

export async function runIngress({ config, log, signal }: IngressOptions): Promise<void> {
  const paths = pathsIn(config.data_dir);
  const { host_token } = await readSecrets(paths, config.secret_key);
  const address = { address: `unix:${paths.agent_api_socket}`, token: host_token };
  const client = new ControlPlaneClient(address, logNegotiated(log));
  await new Ingress({ host: config.ssh.host, client, log }).run(signal);
  await client.close();
}
