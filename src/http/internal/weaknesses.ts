/** Weaknesses of the installation, from the server's settings and from the database; for `berth doctor`. */
import type { FastifyInstance } from 'fastify';
import { ROUTES } from '../../agent-api/routes.ts';
import type { Weakness } from '../../agent-api/weaknesses.ts';
import type { Db } from '../../db/pool.ts';
import { listHostFacts } from '../../hosts/store.ts';
import type { QuotaLimits } from '../../lib/quotas.ts';
import { listUnlimited } from '../../orgs/quota-store.ts';
import { serve } from './serve.ts';

export interface Installation {
  readonly origins: readonly string[];
  /** From its settings. */
  readonly weak_settings: readonly Weakness[];
}

/** On the unix socket only, so that no other machine can read them. */
export function registerWeaknesses(
  app: FastifyInstance,
  { db, quotas }: { readonly db: Db; readonly quotas: QuotaLimits },
  { origins, weak_settings }: Installation,
): void {
  serve(app, ROUTES.weaknesses, async () => {
    const weaknesses = [...weak_settings, ...(await weakQuotas(db, quotas)), ...(await weakHosts(db))];
    return { origins, weaknesses };
  });
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
      const found = `host ${name} emulates its VMs: QEMU's developers promise isolation with KVM alone`;
      weak.push({
        check: 'VM isolation',
        found,
        next: 'a host with KVM, for guests of people you do not trust',
      });
    }
  }
  return weak;
}
