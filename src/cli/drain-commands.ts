/** `berth host cordon`, `drain`, `uncordon` and `show`, on the server. */
import { type Db, type Tx, transaction } from '../control-plane/db/pool.ts';
import { cordon, drain, type FleetHost, uncordon } from '../control-plane/fleet/fleet-store.ts';
import { capacityOf } from '../control-plane/fleet/host-store.ts';
import { hostState } from '../control-plane/fleet/place-vm.ts';
import { listStaying, type Staying } from '../control-plane/vms/move-store.ts';
import { rfc3339 } from '../shared/clock.ts';
import { labelsText } from './commands/instance-rows.ts';
import { findHost, lockHost } from './found-host.ts';
import { noteOperator, type ServerContext } from './server-context.ts';
import { bytes, plural, when } from './table.ts';

const MIB = 2 ** 20;

/** Places no more VMs there; those that run stay. */
export function cordonHost(server: ServerContext, name: string): Promise<string> {
  return transaction(server.db, async (tx) => {
    const host = await lockHost(tx, name);
    await cordon(tx, host.id);
    await noteOperator(tx, server, 'host.cordon', host.id, { name });
    return `${name} takes no new VMs. ${staying(host.vms)}\n`;
  });
}

/** Cordons it, and moves its VMs to other hosts. */
export function drainHost(server: ServerContext, name: string): Promise<string> {
  return transaction(server.db, async (tx) => {
    const host = await lockHost(tx, name);
    // A repeated drain keeps its count.
    if (!host.draining) await drain(tx, host.id, host.vms);
    await noteOperator(tx, server, 'host.drain', host.id, { name });
    if (host.vms === 0) return `${name} takes no new VMs, and has none.\n`;
    return `${name} takes no new VMs, and its ${plural(host.vms, 'VM')} move to other hosts. Progress: berth host show ${name}\n`;
  });
}

/** Takes cordon and drain back. VMs that have left continue elsewhere. */
export function uncordonHost(server: ServerContext, name: string): Promise<string> {
  return transaction(server.db, async (tx) => {
    const host = await lockHost(tx, name);
    await uncordon(tx, host.id);
    await noteOperator(tx, server, 'host.uncordon', host.id, { name });
    return `${name} takes VMs again. ${staying(host.vms)}\n`;
  });
}

function staying(vms: number): string {
  return vms === 0 ? 'It has none.' : `Its ${plural(vms, 'VM')} stay${vms === 1 ? 's' : ''} there.`;
}

export async function showHost({ db }: ServerContext, name: string): Promise<string> {
  const host = await findHost(db, name);
  const { facts } = host;
  const capacity = facts === null ? null : capacityOf({ ...host, facts });
  const most = capacity === null ? 'capacity not set' : `of ${bytes(capacity.memory_mib * MIB)}`;
  const rows = [
    ['name', host.name],
    ['state', hostState(host)],
    ['VMs', String(host.vms)],
    ['memory', `${bytes(host.used_memory_mib * MIB)} ${most}`],
    ['CPUs of a VM', capacity === null ? '-' : String(capacity.cpus ?? facts?.cpus ?? '-')],
    ['accelerator', facts?.accelerator ?? '-'],
    ['labels', labelsText(host.labels) || '-'],
    ['taints', host.taints.join(', ') || '-'],
    ['last seen', when(host.last_seen_at === null ? null : rfc3339(host.last_seen_at))],
    ['id', host.id],
  ];
  const width = Math.max(...rows.map(([key = '']) => key.length)) + 2;
  const text = rows.map(([key = '', value = '']) => `${key.padEnd(width)}${value}\n`);
  return [...text, ...(await drainLines(db, host))].join('');
}

/** How far the drain is, and for each VM that has not left, why. Nothing of a host that is not drained. */
export async function drainLines(db: Db | Tx, host: FleetHost): Promise<string[]> {
  if (!host.draining) return [];
  const left = await listStaying(db, host.id);
  const all = Math.max(host.drain_vms ?? 0, left.length);
  return [
    `${host.name} is drained: ${all - left.length} of ${plural(all, 'VM')} moved.\n`,
    ...left.map(lineOf),
  ];
}

function lineOf({ name, state, problem }: Staying): string {
  const failed =
    'it has failed, and its last writes may be on this host alone: start it, and it moves, or stop it';
  const why = state === 'failed' ? failed : problem;
  return `  ${name}  ${state}${why === null ? '' : `: ${why}`}\n`;
}
