/**
 * The process `control-plane`: serves the public API, and the internal API for agents and ingresses, and runs the
 * background tasks. It keeps its state in the database alone, so it can be restarted at any time.
 */
import { randomInt } from 'node:crypto';
import { lookup } from 'node:dns/promises';
import { chmod, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { FastifyInstance } from 'fastify';
import { type Config, localOrigin } from '../../config/config.ts';
import { type Paths, pathsIn } from '../../config/paths.ts';
import type { Address, Setting } from '../../config/settings.ts';
import { httpEndpoint, weakSettings } from '../../config/weak-settings.ts';
import { createApp } from '../../control-plane/app.ts';
import { type AppContext, keyedParts } from '../../control-plane/context.ts';
import { MigrationError, migrate, requireMigrated } from '../../control-plane/db/migrate.ts';
import { NotifyHub } from '../../control-plane/db/notify.ts';
import { type Db, openPool, transaction } from '../../control-plane/db/pool.ts';
import { diskKeys } from '../../control-plane/disks/data-keys.ts';
import { knownMarks } from '../../control-plane/disks/store.ts';
import { upsertLocalIngress } from '../../control-plane/fleet/control-plane-store.ts';
import { HostCalls, HostSilence } from '../../control-plane/fleet/host-calls.ts';
import { ensureHost, HostTakenError } from '../../control-plane/fleet/host-store.ts';
import { type HostsCertificate, hostsCertificate } from '../../control-plane/fleet/hosts-certificate.ts';
import { Membership, Peers } from '../../control-plane/fleet/peers.ts';
import { claimRootKey } from '../../control-plane/fleet/root-key.ts';
import type { Installation } from '../../control-plane/fleet/weaknesses.ts';
import { createFirstAdministrator } from '../../control-plane/identity/accounts.ts';
import { identitySealer } from '../../control-plane/identity/oidc/identity-store.ts';
import { Flows, OidcProvider, redirectUri } from '../../control-plane/identity/oidc/provider.ts';
import { guessableBecause } from '../../control-plane/identity/passwords.ts';
import { hashToken } from '../../control-plane/identity/tokens.ts';
import { offerAddresses } from '../../control-plane/instances/ssh-address-store.ts';
import { createInternalApp } from '../../control-plane/internal/app.ts';
import type { InternalContext } from '../../control-plane/internal/serve.ts';
import { createDeliver } from '../../control-plane/mail/send-mails.ts';
import { Mailbox } from '../../control-plane/mail/store.ts';
import { createMetricsApp, RequestMetrics } from '../../control-plane/monitoring/metrics.ts';
import { schedule } from '../../control-plane/schedule.ts';
import { runTasks } from '../../control-plane/tasks/run-tasks.ts';
import { Outbound } from '../../control-plane/webhooks/outbound.ts';
import { runSenders } from '../../control-plane/webhooks/senders.ts';
import { fenceVms } from '../../host/lease/fencer.ts';
import { type ObjectStore, ObjectStoreUnavailableError } from '../../object-store/object-store.ts';
import { openStore } from '../../object-store/open-store.ts';
import { S3Store } from '../../object-store/s3-store.ts';
import { type MarkedStore, ownStore, WrongStoreError } from '../../object-store/store-mark.ts';
import {
  boundHttp,
  ConnectionBudget,
  type ConnectionBudgetOptions,
  filesForConnections,
  openFilesLimit,
} from '../../shared/connection-budget.ts';
import { messageOf } from '../../shared/errors.ts';
import type { Log } from '../../shared/log.ts';
import { TrustedProxies } from '../../shared/networks.ts';
import { Sealer } from '../../shared/seal.ts';
import {
  fullDisk,
  keepFirstLogin,
  readHostToken,
  readIngressSecret,
  readSecretKey,
  weakFiles,
} from '../data-folder.ts';
import { outgoingPorts } from '../reachable.ts';
import { refuseWrongKey, type Say, StartError } from '../start-error.ts';
import { aborted } from '../supervise.ts';

/** Built by `console/build.ts`. */
const CONSOLE_DIR = join(import.meta.dirname, '..', '..', '..', 'console', 'dist');
/** Built by `site/build.ts`. */
const SITE_DIR = join(import.meta.dirname, '..', '..', '..', 'site', 'dist');

/** Of the API, and of hosts and ingresses on other machines. */
const CONNECTIONS_MAX = 20_000;
const LISTENERS = 2;
/** A stream to a guest has another to its host's agent. */
const FILES_OF_A_CONNECTION = 1.5;
/** Its clients are few. */
const CONNECTIONS_OF_METRICS = 64;

export interface ControlPlaneOptions {
  readonly config: Config;
  readonly log: Log;
  readonly say: Say;
  readonly signal: AbortSignal;
  /** That of `npm start` brings the database up to date and has a host beside it. One alone has none, and requires that `berth migrate` ran. */
  readonly migrates: boolean;
}

/** Runs until `signal` aborts. @throws StartError for what the operator must fix */
export async function runControlPlane({
  config,
  log,
  say,
  signal,
  migrates,
}: ControlPlaneOptions): Promise<void> {
  const paths = pathsIn(config.data_dir);
  const secret_key = await readSecretKey(paths, config.secret_key);
  const { database_url } = config;
  if (database_url === null)
    throw new StartError('DATABASE_URL: is not set; the control plane needs a database');
  await refuseUnlessUpToDate(database_url, migrates);
  const db = openPool(database_url, (error) => log.warn({ err: error }, 'an idle database connection broke'));
  const root_key = refuseWrongKey(await claimRootKey(db, secret_key), config, paths);
  const hub = new NotifyHub(database_url, log);
  const objects = await openStore({ s3: config.s3, folder: paths.objects, log });
  const store = ownStore(knownMarks(db), objects);
  await refuseWrongStore(store, log);
  await ensureAdministrator(db, config, paths, say);
  if (migrates) await addLocalHost(db, paths);
  const { smtp_url, admin } = config;
  const deliver = createDeliver({ smtp_url, folder: paths.mail, from: admin.email });
  const certificate = config.hosts_listen && (await hostsCertificate(db, root_key));
  const membership = new Membership(placeOf(config, certificate), { db, log });
  const peers = new Peers({ membership, root_key, db, hub, log });
  const host_calls = new HostCalls(peers, new HostSilence(db));
  const parts = await appContext(config, root_key, { db, hub, log, host_calls });
  const base = { ...parts, control_planes: () => Math.max(1, membership.live.length) };
  const metrics = config.metrics_listen && new RequestMetrics();
  const context = metrics ? { ...base, metrics } : base;
  await transaction(db, (tx) => offerAddresses(tx, context.ssh));
  const by_source = sourcesIn(config, log);
  const internal = { ...context, host_lease_ms: config.host_lease_ms, peers, ...signing(objects, store) };
  const apps = [await createApp(context), createInternalApp(internal)] as const;
  boundHttp(apps[0].server, new ConnectionBudget({ ...by_source, most: connectionsOfAListener() }));
  const far = certificate && (await listenToHosts(config, certificate, internal, by_source));
  const scraped = metrics && (await listenToPrometheus(config, metrics, context));
  hub.start();
  await listen(apps, config, paths);
  const member = membership.run(signal);
  log.info({ listen: `${config.listen.host}:${config.listen.port}` }, 'control plane listens');
  const tasks = runTasks(
    schedule({ ...context, store, deliver, removal_delay_ms: config.removal_delay_ms, signal }),
    hub,
    log,
    signal,
  );
  const senders = runSenders({ db, hub, log, ...context.webhooks }, signal);
  await aborted(signal);
  // They record the outcomes of the requests in flight, and are woken by the hub.
  await senders;
  await context.webhooks.outbound.close();
  // Ends the long polls, which would keep the servers open.
  context.host_calls.close();
  await hub.stop();
  await Promise.all([...apps.map((app) => app.close()), far?.close(), scraped?.close(), tasks, member]);
  await peers.close();
  await db.destroy();
}

/** A folder has nothing to sign, and no host on another machine. */
function signing(objects: ObjectStore, store: MarkedStore): Pick<InternalContext, 'sign'> {
  if (!(objects instanceof S3Store)) return {};
  return {
    sign: async (request) => {
      await store.verified();
      return objects.sign(request);
    },
  };
}

/** A store that is unreachable now is claimed later, and not used until then. */
async function refuseWrongStore(store: MarkedStore, log: Log): Promise<void> {
  try {
    await store.verified();
  } catch (error) {
    if (error instanceof WrongStoreError) throw new StartError(`object store: ${error.message}`, 2);
    if (!(error instanceof ObjectStoreUnavailableError)) throw error;
    log.warn({ problem: error.message }, 'the object store cannot be claimed yet');
  }
}

/**
 * Host and ingress of this machine, if it has them; its control plane alone reaches them. Where another data folder is that host, VMs
 * of this one are paused: they may run elsewhere. @throws StartError
 */
async function addLocalHost(db: Db, paths: Paths): Promise<void> {
  const host_token = await readHostToken(paths);
  if (host_token === undefined) return;
  try {
    const host_id = await ensureHost(db, 'local', hashToken(host_token));
    await upsertLocalIngress(db, 'local', hashToken(await readIngressSecret(paths)), host_id);
  } catch (error) {
    if (!(error instanceof HostTakenError)) throw error;
    const paused = fenceVms(paths).length;
    throw new StartError(
      `DATABASE_URL: the host local of this database is another data folder than ${paths.data}. If that machine is gone: berth host replace local --machine-gone; else run berth control-plane here, and berth host for VMs${paused === 0 ? '' : `. VMs of this folder were paused: ${paused}`}`,
      2,
      { cause: error },
    );
  }
}

async function refuseUnlessUpToDate(database_url: string, migrates: boolean): Promise<void> {
  try {
    if (migrates) await migrate(database_url);
    else await requireMigrated(database_url);
  } catch (error) {
    if (error instanceof MigrationError)
      throw new StartError(`database: ${error.message}`, 2, { cause: error });
    throw new StartError(`DATABASE_URL: the database cannot be used: ${messageOf(error)}`, 1, {
      cause: error,
    });
  }
}

const PASSWORD_ALPHABET = 'abcdefghjkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789';

/** The launcher prints a generated password once everything is ready. */
async function ensureAdministrator(db: Db, config: Config, paths: Paths, say: Say): Promise<void> {
  const { email, password } = config.admin;
  if (password !== null) {
    const reason = guessableBecause(password, email);
    if (reason !== null) throw new StartError(`BERTH_ADMIN_PASSWORD: its value (not shown) ${reason}`);
    if (await createFirstAdministrator(db, email, password)) {
      say(`first administrator: ${email}, with the password in BERTH_ADMIN_PASSWORD`);
    }
    return;
  }
  const generated = Array.from({ length: 20 }, () =>
    PASSWORD_ALPHABET.charAt(randomInt(PASSWORD_ALPHABET.length)),
  ).join('');
  const url = localOrigin(config);
  await createFirstAdministrator(db, email, generated, () =>
    keepFirstLogin(paths, { url, email, password: generated }),
  );
}

async function appContext(
  config: Config,
  root_key: Buffer,
  parts: Pick<AppContext, 'db' | 'hub' | 'log' | 'host_calls'>,
): Promise<AppContext> {
  const { tls, ssh } = config;
  return {
    ...parts,
    ...keyedParts(root_key),
    disk_keys: diskKeys(root_key, config.encryption),
    mailbox: new Mailbox(new Sealer(root_key, 'berth mails v1')),
    webhooks: {
      outbound: new Outbound({ allow_cidrs: config.webhook_allow_cidrs }),
      secrets: new Sealer(root_key, 'berth webhooks v1'),
    },
    signups: config.signups,
    oidc: oidcOf(config, root_key),
    password_login: config.password_login,
    quotas: config.quotas,
    rate_limits: config.rate_limits,
    ssh: { hosts: ssh.hosts, first_port: ssh.ports.first, last_port: ssh.ports.last, listen: ssh.listen },
    http: httpEndpoint({
      domain: config.http.domain,
      listen_port: config.http.listen.port,
      tls: config.http.tls !== null,
      url: config.http.url,
    }),
    has_smtp: config.smtp_url !== null,
    public_url: config.public_url,
    hosts: [...config.hosts, config.listen.host],
    console_dir: CONSOLE_DIR,
    site_dir: SITE_DIR,
    trusted_proxies: config.trusted_proxies.map(({ address, prefix }) => `${address}/${prefix}`),
    installation: installationOf(config),
    tls: tls && { cert: await readFile(tls.cert_path), key: await readFile(tls.key_path) },
  };
}

function oidcOf({ oidc, public_url }: Config, root_key: Buffer): AppContext['oidc'] {
  if (oidc === null) return null;
  return {
    provider: new OidcProvider({ ...oidc, redirect_uri: redirectUri(public_url) }),
    flows: new Flows(root_key),
    identities: identitySealer(root_key),
  };
}

function installationOf(config: Config): Installation {
  const { data_dir, s3 } = config;
  const { secrets, objects } = pathsIn(data_dir);
  return {
    origins: [config.public_url, localOrigin(config)],
    weak_settings: [...weakSettings(config), ...outgoingPorts(config.ssh.ports)],
    weakFiles: () => [...weakFiles(secrets), ...fullDisk(data_dir)],
    data_dir,
    removal_delay_ms: config.removal_delay_ms,
    object_store:
      s3 === null
        ? { kind: 'folder', place: objects }
        : { kind: 's3', place: `${s3.bucket} at ${s3.endpoint ?? `Amazon, ${s3.region}`}` },
  };
}

type BySource = Omit<ConnectionBudgetOptions, 'most'>;

function sourcesIn({ connections_per_address, trusted_proxies }: Config, log: Log): BySource {
  const trusted = new TrustedProxies(trusted_proxies);
  return { per_source: connections_per_address, isProxy: (address) => trusted.has(address), log };
}

/** As many connections as the process's limit of open files allows, to the API or to hosts. */
function connectionsOfAListener(): number {
  const files = filesForConnections(openFilesLimit());
  return Math.min(CONNECTIONS_MAX, Math.floor(files / FILES_OF_A_CONNECTION / LISTENERS));
}

async function listen(
  [app, internal]: readonly [FastifyInstance, FastifyInstance],
  config: Config,
  paths: Paths,
): Promise<void> {
  await rm(paths.agent_api_socket, { force: true });
  await internal.listen({ path: paths.agent_api_socket });
  await chmod(paths.agent_api_socket, 0o600);
  await app.listen(await oneAddress(config.listen));
}

/** Where hosts, ingresses and other control planes reach this one; null: nowhere, or at an address that nobody has named. */
function placeOf({ hosts_url }: Config, certificate: HostsCertificate | null) {
  return hosts_url === null || certificate === null
    ? null
    : { url: hosts_url, fingerprint: certificate.fingerprint };
}

/** The listener for remote hosts. Comes before the other listeners, so that a wrong address fails the start. */
async function listenToHosts(
  { hosts_listen }: Config,
  { cert, key }: HostsCertificate,
  context: InternalContext,
  by_source: BySource,
): Promise<FastifyInstance | null> {
  if (hosts_listen === null) return null;
  const connections = new ConnectionBudget({ ...by_source, most: connectionsOfAListener() });
  const app = createInternalApp({ ...context, connections }, { cert, key });
  boundHttp(app.server, connections);
  await listenAt(app, 'BERTH_HOSTS_LISTEN', hosts_listen);
  return app;
}

async function listenToPrometheus(
  { metrics_listen }: Config,
  metrics: RequestMetrics,
  context: AppContext,
): Promise<FastifyInstance | null> {
  if (metrics_listen === null) return null;
  const hosts = [...(context.hosts ?? []), metrics_listen.host];
  const app = createMetricsApp(metrics, { ...context, hosts });
  boundHttp(
    app.server,
    new ConnectionBudget({ most: CONNECTIONS_OF_METRICS, per_source: CONNECTIONS_OF_METRICS }),
  );
  await listenAt(app, 'BERTH_METRICS_LISTEN', metrics_listen);
  return app;
}

/** For `localhost` Fastify would make a second server, whose connections nobody counts. */
async function oneAddress({ host, port }: Address): Promise<Address> {
  const { address } = await lookup(host, { order: 'ipv4first' });
  return { host: address, port };
}

async function listenAt(app: FastifyInstance, setting: Setting, address: Address): Promise<void> {
  try {
    await app.listen(await oneAddress(address));
  } catch (error) {
    throw new StartError(`${setting}: cannot listen there: ${messageOf(error)}`, 2, { cause: error });
  }
}
