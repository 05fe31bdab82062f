/** The control plane's listener for remote hosts, in this process, and hosts that join through it. */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after } from 'node:test';
import { parseJoinToken } from '../../src/agent-api/join-token.ts';
import { addHost, type GivenCapacity } from '../../src/cli/host-commands.ts';
import type { ServerContext } from '../../src/cli/server-context.ts';
import { parseConfig } from '../../src/config/config.ts';
import { pathsIn } from '../../src/config/paths.ts';
import { hostsCertificate } from '../../src/control-planes/hosts-certificate.ts';
import { createInternalApp } from '../../src/http/internal/internal-app.ts';
import { ensureSecrets, makeDataFolder } from '../../src/launch/data-folder.ts';
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

export async function listenToRemoteHosts(api: TestApi): Promise<RemoteHosts> {
  const data_dir = mkdtempSync(join(tmpdir(), 'bt-'));
  after(() => rmSync(data_dir, { recursive: true, force: true }));
  const paths = pathsIn(data_dir);
  await makeDataFolder(paths);
  await ensureSecrets(paths, null, false);
  const tls = await hostsCertificate(api.db, api.context.secret_key);
  const app = createInternalApp({ ...api.context, host_lease_ms: 40_000 }, tls);
  const origin = await app.listen({ host: '127.0.0.1', port: 0 });
  api.beforeClose(async () => {
    api.context.host_calls.close();
    await app.close();
  });
  const parsed = parseConfig({ BERTH_DATA_DIR: data_dir, ...FLEET }, '/');
  assert(parsed.ok);
  const { secret_key, audit } = api.context;
  const { database, db } = api;
  const server = { config: parsed.config, paths, database_url: database.url, secret_key, db, audit };
  return {
    ...{ origin, cert: tls.cert, server },
    join: async (name, capacity) => {
      const joining = parseJoinToken((await addHost(server, name, capacity)).trim());
      assert(joining);
      const agent = new ScriptedAgent(origin, joining.token, joining.fingerprint);
      api.beforeClose(() => agent.close());
      return { agent, token: joining.token };
    },
  };
}
