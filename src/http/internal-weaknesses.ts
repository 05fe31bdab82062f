/** What weakens the installation, as the running server knows it: its settings, and what is in the database. */
import type { FastifyInstance } from 'fastify';
import type { Weakness, WeaknessesResponse } from '../agent-api/weaknesses.ts';
import type { Db } from '../db/pool.ts';
import { listHostFacts } from '../hosts/store.ts';
import { listUnlimited } from '../orgs/quota-store.ts';

export interface Installation {
  readonly origins: readonly string[];
  /** Of its settings. */
  readonly weak_settings: readonly Weakness[];
}

/** On the unix socket alone: a host on another machine is not told. */
export function registerWeaknesses(
  app: FastifyInstance,
  db: Db,
  { origins, weak_settings }: Installation,
): void {
  app.post('/internal/v1/weaknesses', async (): Promise<WeaknessesResponse> => {
    const weaknesses = [...weak_settings, ...(await weakQuotas(db)), ...(await weakHosts(db))];
    return { origins, weaknesses };
  });
}

async function weakQuotas(db: Db): Promise<Weakness[]> {
  const unlimited = await listUnlimited(db);
  const [first] = unlimited;
  if (!first) return [];
  const who = unlimited.length === 1 ? `of ${first.id}` : `of ${unlimited.length} organisations`;
  return [
    {
      check: 'quotas',
      found: `unlimited ${who} (${first.quotas.join(', ')}): one organisation can take the whole machine`,
      next: `berth org quota ${first.id} --instances 20 --cpus 32 --memory-mib 65536 --disk-gib 512`,
    },
  ];
}

async function weakHosts(db: Db): Promise<Weakness[]> {
  const weak: Weakness[] = [];
  for (const { name, facts } of await listHostFacts(db)) {
    const { isolation_problem, accelerator } = facts;
    if (isolation_problem !== null) {
      const found = `not in force on host ${name}: ${isolation_problem}`;
      const next = 'run Berth as root, with nftables, on that host';
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
