/** Opens the control plane's listener for remote hosts in this process, and lets scripted agents join through it. */
import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after } from 'node:test';
import type { ServerContext } from '../../src/cli/server/context.ts';
import { addHost, type GivenCapacity } from '../../src/cli/server/hosts.ts';
import { parseConfig } from '../../src/config/config.ts';
import { pathsIn } from '../../src/config/paths.ts';
import { hostsCertificate } from '../../src/control-plane/fleet/hosts-certificate.ts';
import { createInternalApp } from '../../src/control-plane/internal/app.ts';
import type { InternalContext } from '../../src/control-plane/internal/serve.ts';
import { ensureSecrets, makeDataFolder } from '../../src/launcher/data-folder.ts';
import { ControlPlaneClient } from '../../src/protocol/client.ts';
import { parseJoinToken } from '../../src/protocol/protocol.ts';
import { boundHttp, type ConnectionBudget } from '../../src/shared/connection-budget.ts';
import type { TestApi } from './api.ts';
import { ScriptedAgent } from './scripted-agent.ts';

const FLEET = { BERTH_HOSTS_LISTEN: '0.0.0.0:7500', BERTH_S3_BUCKET: 'berth' };

export interface RemoteHosts {
  readonly origin: string;
  readonly cert: string;
  /** The context of commands on the server, as `bin/berth` loads it. */
  readonly server: ServerContext;
  /** Adds a host of that name, which has not reported yet. */
  join(name: string, capacity?: GivenCapacity): Promise<{ agent: ScriptedAgent; token: string }>;
}

/** Exchanges a join token for a credential, as a host does. */
export async function joinWith(
  origin: string,
  text: string,
): Promise<{ readonly token: string; readonly fingerprint: string }> {
  const joining = parseJoinToken(text);
  assert(joining);
  const { fingerprint } = joining;
  const client = new ControlPlaneClient({ address: origin, token: joining.token, fingerprint });
  const token = `berth_host_${randomBytes(32).toString('base64url')}`;
  await client.join({ credential_sha256: createHash('sha256').update(token).digest('hex') });
  await client.close();
  return { token, fingerprint };
}

export async function listenToRemoteHosts(
  api: TestApi,
  more: Pick<InternalContext, 'sign'> & { readonly connections?: ConnectionBudget } = {},
): Promise<RemoteHosts> {
  const data_dir = mkdtempSync(join(tmpdir(), 'bt-'));
  after(() => rmSync(data_dir, { recursive: true, force: true }));
  const paths = pathsIn(data_dir);
  await makeDataFolder(paths);
  await ensureSecrets(paths, null, false);
  const tls = await hostsCertificate(api.db, api.context.root_key);
  const app = createInternalApp({ ...api.context, host_lease_ms: 40_000, ...more }, tls);
  if (more.connections) boundHttp(app.server, more.connections);
  const origin = await app.listen({ host: '127.0.0.1', port: 0 });
  api.beforeClose(async () => {
    api.context.host_calls.close();
    await app.close();
  });
  const parsed = parseConfig({ BERTH_DATA_DIR: data_dir, ...FLEET }, '/');
  assert(parsed.ok);
  const { root_key, audit } = api.context;
  const { database, db, secret_key } = api;
  const server = {
    config: parsed.config,
    paths,
    database_url: database.url,
    secret_key,
    root_key,
    db,
    audit,
  };
  return {
    ...{ origin, cert: tls.cert, server },
    join: async (name, capacity) => {
      const { token, fingerprint } = await joinWith(origin, await addHost(server, name, capacity));
      const agent = new ScriptedAgent(origin, token, fingerprint);
      api.beforeClose(() => agent.close());
      return { agent, token };
    },
  };
}
