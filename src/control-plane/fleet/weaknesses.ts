/**
 * Finds weaknesses of the installation in its settings, database and files, for the operator. `berth doctor` on the
 * server asks for them by the internal API.
 */
import type { FastifyInstance } from 'fastify';
import type { Weakness } from '../../protocol/host-types.ts';
import { ROUTES } from '../../protocol/routes.ts';
import { messageOf } from '../../shared/errors.ts';
import type { QuotaLimits } from '../../shared/quotas.ts';
import type { Db } from '../db/pool.ts';
import { sumUnheld } from '../disks/segment-store.ts';
import type { OidcProvider } from '../identity/oidc/provider.ts';
import { type InternalContext, serve } from '../internal/serve.ts';
import { listUnlimited } from '../organisations/quota-store.ts';
import { findOrganisation } from '../organisations/store.ts';
import { findCertificates, findRootKeyCopies } from './control-plane-store.ts';
import { listHostFacts } from './host-store.ts';

/** What the process knows of the installation beside the database. No secrets. */
export interface Installation {
  /** The server's own origins. */
  readonly origins: readonly string[];
  /** From its settings. */
  readonly weak_settings: readonly Weakness[];
  /** From its data folder as it is now. */
  readonly weakFiles: () => readonly Weakness[];
  readonly data_dir: string;
  readonly object_store: {
    readonly kind: 'folder' | 's3';
    /** The folder's path, or the bucket and its endpoint. */
    readonly place: string;
  };
  /** How long objects that nothing needs any more stay. */
  readonly removal_delay_ms: number;
}

export async function findWeaknesses(context: {
  readonly db: Db;
  readonly quotas: QuotaLimits;
  readonly installation: Installation;
  readonly oidc: { readonly provider: OidcProvider } | null;
}): Promise<Weakness[]> {
  const { db, quotas, oidc } = context;
  const { weak_settings, weakFiles } = context.installation;
  return [
    ...weak_settings,
    ...(oidc ? await weakProvider(db, oidc.provider) : []),
    ...(await weakQuotas(db, quotas)),
    ...(await weakHosts(db)),
    ...(await weakKeys(db)),
    ...(await weakCertificates(db)),
    ...weakFiles(),
  ];
}

const PROVIDER = 'OpenID provider';

async function weakProvider(db: Db, provider: OidcProvider): Promise<Weakness[]> {
  const weak: Weakness[] = [];
  try {
    await provider.check();
  } catch (error) {
    const found = `${provider.issuer} gives no usable document: ${messageOf(error)}`;
    weak.push({ check: PROVIDER, found, next: `curl ${provider.issuer}/.well-known/openid-configuration` });
  }
  const mapped = [...new Set(provider.settings.groups.map(({ org_id }) => org_id))];
  for (const org_id of mapped) {
    if (await findOrganisation(db, org_id)) continue;
    const found = `BERTH_OIDC_GROUPS names ${org_id}, which does not exist`;
    weak.push({ check: PROVIDER, found, next: 'berth org quota, which lists all organisations' });
  }
  return weak;
}

async function weakQuotas(db: Db, quotas: QuotaLimits): Promise<Weakness[]> {
  const unlimited = await listUnlimited(db, quotas);
  const [first] = unlimited;
  if (!first) return [];
  const who = unlimited.length === 1 ? `of ${first.id}` : `of ${unlimited.length} organisations`;
  return [
    {
      check: 'quotas',
      found: `unlimited ${who} (${first.quotas.join(', ')}): one organisation can take the whole machine`,
      next: `berth org quota ${first.id} ${first.quotas.map((quota) => `--${quota.replaceAll('_', '-')} default`).join(' ')}`,
    },
  ];
}

async function weakHosts(db: Db): Promise<Weakness[]> {
  const weak: Weakness[] = [];
  for (const { name, facts } of await listHostFacts(db)) {
    const { isolation_problem, accelerator } = facts;
    if (isolation_problem !== null) {
      const found = `not in force on host ${name}: ${isolation_problem}`;
      const next = 'run Berth there as root, with nftables and bubblewrap, where namespaces are allowed';
      weak.push({ check: 'VM isolation', found, next });
    }
    if (accelerator !== 'kvm') {
      const found = `host ${name} emulates its VMs: QEMU's developers promise isolation only with KVM`;
      weak.push({
        check: 'VM isolation',
        found,
        next: 'a host with KVM, for guests of people you do not trust',
      });
    }
  }
  return weak;
}

async function weakKeys(db: Db): Promise<Weakness[]> {
  const copies = await findRootKeyCopies(db);
  if (!copies?.new_root_key) return [];
  const found = 'two open the database: the old one is not forgotten yet';
  return [
    { check: 'secret key', found, next: 'berth secret-key forget-old, with the new one in the settings' },
  ];
}

async function weakCertificates(db: Db): Promise<Weakness[]> {
  const { next } = await findCertificates(db);
  if (next === null) return [];
  const found = 'that hosts pin: it is being replaced, and a control plane still shows the old one';
  return [{ check: 'certificate', found, next: 'berth certificate show says which, and what to do' }];
}

/** On the unix socket only, so that no other machine can read them. */
export function registerWeaknesses(app: FastifyInstance, context: InternalContext): void {
  serve(app, ROUTES.weaknesses, async () => ({
    origins: [...context.installation.origins],
    weaknesses: await findWeaknesses(context),
    awaiting_removal_bytes: await sumUnheld(context.db),
    removal_delay_seconds: context.installation.removal_delay_ms / 1_000,
  }));
}
