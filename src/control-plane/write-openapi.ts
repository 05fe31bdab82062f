/**
 * Builds the document of the public API (OpenAPI) from the registered routes, without a database. Run as a program, it
 * writes the document to `openapi/v1.json`.
 */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createLog } from '../shared/log.ts';
import { QUOTA_DEFAULTS } from '../shared/quotas.ts';
import { Sealer } from '../shared/seal.ts';
import { LISTEN_AT_NAMES } from '../shared/setting-values.ts';
import { createApp } from './app.ts';
import { keyedParts } from './context.ts';
import { NotifyHub } from './db/notify.ts';
import { openPool } from './db/pool.ts';
import { diskKeys } from './disks/data-keys.ts';
import { HostCalls } from './fleet/host-calls.ts';
import { Mailbox } from './mail/store.ts';
import { Outbound } from './webhooks/outbound.ts';

export const OPENAPI_PATH = join(import.meta.dirname, '..', '..', 'openapi', 'v1.json');
/** Never connected. */
const NO_DATABASE = 'postgresql://localhost/none';

export async function openApiText(): Promise<string> {
  const log = createLog('write-openapi', 'silent');
  const root_key = Buffer.alloc(32);
  const db = openPool(NO_DATABASE, () => undefined);
  const outbound = new Outbound({ allow_cidrs: [] });
  const app = await createApp({
    db,
    hub: new NotifyHub(NO_DATABASE, log),
    host_calls: new HostCalls(),
    log,
    ...keyedParts(root_key),
    disk_keys: diskKeys(root_key, true),
    webhooks: { outbound, secrets: new Sealer(root_key, 'berth webhooks v1') },
    mailbox: new Mailbox(new Sealer(root_key, 'berth mails v1')),
    signups: 'closed',
    oidc: null,
    password_login: true,
    quotas: QUOTA_DEFAULTS,
    rate_limits: null,
    ssh: { hosts: ['127.0.0.1'], first_port: 22_000, last_port: 22_999, listen: LISTEN_AT_NAMES },
    http: { domain: 'apps.example.org', scheme: 'http', port: null },
    public_url: 'http://127.0.0.1:7400',
    trusted_proxies: [],
    has_smtp: false,
    installation: {
      origins: [],
      weak_settings: [],
      weakFiles: () => [],
      data_dir: '/',
      removal_delay_ms: 3_600_000,
      object_store: { kind: 'folder', place: '/' },
    },
    tls: null,
  });
  await app.ready();
  const text = `${JSON.stringify(app.apiDocument(), null, 2)}\n`;
  await app.close();
  await outbound.close();
  await db.destroy();
  return text;
}

if (import.meta.main) await writeFile(OPENAPI_PATH, await openApiText());
