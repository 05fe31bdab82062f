/**
 * Runs the control plane in this process, wired like `launcher/roles/control-plane.ts`: public and internal API on free
 * loopback ports, a database of its own, and a scripted agent instead of a host. The test runs the background tasks.
 */

import { randomBytes } from 'node:crypto';
import { after } from 'node:test';
import type { FastifyInstance } from 'fastify';
import type { Static } from 'typebox';
import { Agent } from 'undici';
import { createApp } from '../../src/control-plane/app.ts';
import { type AppContext, keyedParts } from '../../src/control-plane/context.ts';
import { NotifyHub } from '../../src/control-plane/db/notify.ts';
import { type Db, openPool, transaction } from '../../src/control-plane/db/pool.ts';
import { diskKeys } from '../../src/control-plane/disks/data-keys.ts';
import { upsertLocalIngress } from '../../src/control-plane/fleet/control-plane-store.ts';
import { HostCalls, HostSilence } from '../../src/control-plane/fleet/host-calls.ts';
import { ensureHost } from '../../src/control-plane/fleet/host-store.ts';
import { noOthers } from '../../src/control-plane/fleet/peers.ts';
import { claimRootKey } from '../../src/control-plane/fleet/root-key.ts';
import { hashToken } from '../../src/control-plane/identity/tokens.ts';
import type { InstanceBody, Vm } from '../../src/control-plane/instances/schemas.ts';
import { offerAddresses } from '../../src/control-plane/instances/ssh-address-store.ts';
import { createInternalApp } from '../../src/control-plane/internal/app.ts';
import type { Mail } from '../../src/control-plane/mail/send-mails.ts';
import { Outbound } from '../../src/control-plane/webhooks/outbound.ts';
import { ControlPlaneClient } from '../../src/protocol/client.ts';
import type { HostId, InstanceId } from '../../src/shared/ids.ts';
import { createLog } from '../../src/shared/log.ts';
import { Sealer } from '../../src/shared/seal.ts';
import { LISTEN_AT_NAMES } from '../../src/shared/setting-values.ts';
import { Client } from './client.ts';
import { startDatabase, type TestDatabase } from './database.ts';
import { NO_INSTALLATION } from './no-installation.ts';
import { makePerson, type Person, type PersonOptions } from './people.ts';
import { RecordingMailbox } from './recording-mailbox.ts';
import { ScriptedAgent } from './scripted-agent.ts';
import { UNLIMITED_ORGANISATIONS } from './unlimited-quotas.ts';

export type InstanceOut = InstanceBody & { readonly id: InstanceId };
export type VmOut = Static<typeof Vm>;

export interface TestApi {
  readonly app: FastifyInstance;
  readonly context: AppContext;
  readonly database: TestDatabase;
  readonly db: Db;
  readonly hub: NotifyHub;
  readonly origin: string;
  readonly internal_origin: string;
  /** For commands on the server. */
  readonly secret_key: Buffer;
  readonly host_id: HostId;
  readonly host_token: string;
  readonly agent: ScriptedAgent;
  /** The token of this machine's ingress, and its client. */
  readonly ingress_token: string;
  readonly ingress: ControlPlaneClient;
  /** All mails so far, oldest first. */
  readonly mails: readonly Mail[];
  /** Without a credential. */
  readonly client: Client;
  as(who: Person | string): Client;
  person(options?: PersonOptions): Promise<Person>;
  /** A new instance of `who`. */
  instance(who: Person, change?: Record<string, unknown>): Promise<InstanceOut>;
  /** `close` ends it before its dependencies. */
  beforeClose(end: () => Promise<void>): void;
  close(): Promise<void>;
}

export interface ApiOptions {
  /** A database of the caller's. Default: a new one. */
  readonly database?: TestDatabase;
  /** The address that the API connects to, such as a proxy of the test. Default: the database itself. */
  readonly database_url?: (database: TestDatabase) => Promise<string>;
  /** Default: an address of this process alone. */
  readonly ssh_hosts?: readonly string[];
  readonly first_port?: number;
  readonly last_port?: number;
  readonly host_lease_ms?: number;
  /** Of the scripted agent: that of the API whose database this one shares. */
  readonly host_token?: string;
  /** The port of the public API; default: a free one. */
  readonly port?: number;
  /** Settings under test. */
  readonly context?: Partial<AppContext>;
}

/** Starts the API for a test file; awaited at the top of the file. It ends after the file's tests, also when they fail. */
export async function apiForFile(options: ApiOptions = {}): Promise<TestApi> {
  const api = await startApi(options);
  after(() => api.close());
  return api;
}

/** The network of the tests' receivers. */
export const LOOPBACK = [{ address: '127.0.0.0', prefix: 8, family: 'ipv4' }] as const;

let names = 0;
/** A name that is new in this file's database. */
export function newName(): string {
  names += 1;
  return `machine-${names}`;
}

export async function startApi(options: ApiOptions = {}): Promise<TestApi> {
  const database = options.database ?? (await startDatabase());
  const url = (await options.database_url?.(database)) ?? database.url;
  const mailbox = new RecordingMailbox();
  const context = contextOf(url, mailbox, options);
  const { db, hub } = context;
  const { host_token = randomBytes(32).toString('hex') } = options;
  const ingress_token = randomBytes(32).toString('hex');
  const secret_key = randomBytes(32);
  await claimRootKey(database.db, secret_key, context.root_key);
  const host_id = await ensureHost(database.db, 'local', hashToken(host_token));
  await upsertLocalIngress(database.db, 'local', hashToken(ingress_token), host_id);
  await transaction(database.db, (tx) => offerAddresses(tx, context.ssh));
  const app = await createApp(context);
  const internal = createInternalApp({ ...context, host_lease_ms: options.host_lease_ms ?? 40_000 });
  hub.start();
  const origin = await app.listen({ host: '127.0.0.1', port: options.port ?? 0 });
  const internal_origin = await internal.listen({ host: '127.0.0.1', port: 0 });
  const agent = new ScriptedAgent(internal_origin, host_token);
  await agent.connect();
  const ingress = new ControlPlaneClient({ address: internal_origin, token: ingress_token });
  const connections = new Agent({ connections: 64 });
  const endings: (() => Promise<void>)[] = [];
  const client = new Client(origin, connections);
  const as = (who: Person | string) => client.as(typeof who === 'string' ? who : who.session);
  return {
    app,
    context,
    database,
    db: database.db,
    hub,
    origin,
    internal_origin,
    secret_key,
    host_id,
    host_token,
    ingress_token,
    ingress,
    agent,
    mails: mailbox.committed,
    client,
    as,
    person: (given) => makePerson(database.db, given),
    instance: async (who, change) => {
      const made = await as(who).post<InstanceOut>('/v1/instances', { name: newName(), ...change });
      if (made.status !== 201) throw new Error(`no instance: ${made.status} ${made.text}`);
      return made.body;
    },
    beforeClose: (end) => void endings.push(end),
    close: async () => {
      await Promise.all(endings.map((end) => end()));
      await agent.close();
      await ingress.close();
      await connections.destroy();
      context.host_calls.close();
      await hub.stop();
      await Promise.all([app.close(), internal.close()]);
      await context.webhooks.outbound.close();
      await db.destroy();
      await database.close();
    },
  };
}

function contextOf(
  database_url: string,
  mailbox: RecordingMailbox,
  options: ApiOptions,
): AppContext & { hub: NotifyHub } {
  const log = createLog('test', 'silent');
  const root_key = randomBytes(32);
  const db = openPool(database_url, () => undefined);
  return {
    db,
    hub: new NotifyHub(database_url, log),
    host_calls: new HostCalls(noOthers(), new HostSilence(db)),
    log,
    ...keyedParts(root_key),
    disk_keys: diskKeys(root_key, true),
    webhooks: {
      outbound: new Outbound({ allow_cidrs: LOOPBACK }),
      secrets: new Sealer(root_key, 'berth webhooks v1'),
    },
    mailbox,
    signups: 'closed',
    oidc: null,
    password_login: true,
    quotas: UNLIMITED_ORGANISATIONS,
    rate_limits: null,
    ssh: {
      hosts: options.ssh_hosts ?? [loopbackAddress()],
      first_port: options.first_port ?? 22_000,
      last_port: options.last_port ?? 22_999,
      listen: LISTEN_AT_NAMES,
    },
    http: { domain: 'apps.test', scheme: 'http', port: 7480 },
    public_url: 'http://127.0.0.1',
    trusted_proxies: [],
    has_smtp: false,
    installation: NO_INSTALLATION,
    tls: null,
    ...options.context,
  };
}

/** A loopback address of this process alone, so that files that run at the same time can use the same SSH ports. */
function loopbackAddress(): string {
  return `127.${64 + ((process.pid >> 16) & 63)}.${(process.pid >> 8) & 255}.${process.pid & 255 || 1}`;
}
