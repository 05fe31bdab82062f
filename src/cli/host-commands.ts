/** `berth host …` on the server: the machines that VMs run on. */
import { readFile } from 'node:fs/promises';
import { composeJoinToken } from '../agent-api/join-token.ts';
import { HOST_PREFIX, hashToken, newToken } from '../auth/tokens.ts';
import { pathsIn } from '../config/paths.ts';
import { type Tx, transaction } from '../db/pool.ts';
import {
  countLeft,
  type FleetHost,
  insertRemoteHost,
  listFleet,
  listUnsaved,
  markRemoved,
  setDraining,
} from '../hosts/fleet-store.ts';
import { lockPlacement } from '../hosts/store.ts';
import { rfc3339 } from '../lib/clock.ts';
import { CommandError } from './command-error.ts';
import { EXIT } from './exit-codes.ts';
import { noteOperator, type ServerContext } from './server-context.ts';
import { table } from './table.ts';

const FRESH_MS = 20_000;

/** The token of a new host; it is shown this once. */
export async function addHost(server: ServerContext, name: string): Promise<string> {
  const { db, config } = server;
  if (!/^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/.test(name))
    throw new CommandError('a name has 1 to 63 of a-z, 0-9 and hyphens, with no hyphen at its ends');
  if (config.hosts_listen === null)
    throw new CommandError('set BERTH_HOSTS_LISTEN to the address where hosts are to reach this machine');
  const certificate = await readFile(pathsIn(config.data_dir).hosts_tls_cert).catch(() => {
    throw new CommandError('there is no certificate for hosts yet: start Berth once with BERTH_HOSTS_LISTEN');
  });
  const token = newToken(HOST_PREFIX);
  await transaction(db, async (tx) => {
    // Under a host that is back they would be taken for its own, and begun again from their heads as if nothing were lost.
    const left = await countLeft(tx, name);
    if (left > 0)
      throw new CommandError(
        `${left} VMs of the ${name} that was removed are not given up yet: Berth does so within seconds while it runs`,
      );
    const id = await insertRemoteHost(tx, name, hashToken(token));
    if (id === null) throw new CommandError(`there is a host ${name} already; berth host rm takes it out`);
    await noteOperator(tx, server, 'host.add', id, { name });
  });
  return `${composeJoinToken(token, certificate)}\n`;
}

export async function listHosts({ db }: ServerContext): Promise<string> {
  const rows = (await listFleet(db)).filter(({ remote, last_seen_at }) => remote || last_seen_at !== null);
  return table(
    ['NAME', 'STATE', 'VMS', 'MEMORY', 'ACCEL', 'LAST SEEN'],
    rows.map((host) => [
      host.name,
      stateOf(host),
      String(host.vms),
      host.facts ? `${host.used_memory_mib}/${host.facts.memory_mib} MiB` : '-',
      host.facts?.accelerator ?? '-',
      host.last_seen_at ? rfc3339(host.last_seen_at) : '-',
    ]),
  );
}

function stateOf({ last_seen_at, lost_at, draining }: FleetHost): string {
  if (lost_at !== null) return 'lost';
  if (last_seen_at === null) return 'expected';
  if (Date.now() - last_seen_at.getTime() > FRESH_MS) return 'silent';
  return draining ? 'draining' : 'up';
}

/** No VM is placed there any more; those that run go on. */
export async function drainHost(server: ServerContext, name: string, undo: boolean): Promise<string> {
  const host = await transaction(server.db, async (tx) => {
    const found = await findHost(tx, name);
    await setDraining(tx, found.id, !undo);
    await noteOperator(tx, server, undo ? 'host.undrain' : 'host.drain', found.id, { name });
    return found;
  });
  if (undo) return `${name} takes VMs again.\n`;
  return host.vms === 0
    ? `${name} takes no VM any more, and has none.\n`
    : `${name} takes no VM any more. ${host.vms} still there: each moves at its next stop and start.\n`;
}

/** `lost`: the machine is off for good, whatever runs there. */
export async function removeHost(server: ServerContext, name: string, lost: boolean): Promise<string> {
  return transaction(server.db, async (tx) => {
    await lockPlacement(tx);
    const host = await findHost(tx, name);
    if (!host.remote) throw new CommandError(`${name} is this machine; drain it instead`);
    const unsaved = await listUnsaved(tx, host.id);
    if (!lost && host.vms > 0)
      throw new CommandError(
        `${host.vms} VMs are on ${name}: drain it and stop them, or say --lost if that machine is off for good`,
      );
    if (!lost && unsaved.length > 0)
      throw new CommandError(
        `what ${unsaved.join(', ')} wrote last may be on ${name} alone: start or stop them there first, or say --lost`,
      );
    await markRemoved(tx, host.id);
    await noteOperator(tx, server, 'host.remove', host.id, { name, lost });
    return `${name} is removed; its token opens nothing any more.\n`;
  });
}

async function findHost(tx: Tx, name: string): Promise<FleetHost> {
  const found = (await listFleet(tx)).find((each) => each.name === name);
  if (!found)
    throw new CommandError(`there is no host ${name}; berth host ls lists them`, {
      exit_code: EXIT.not_found,
    });
  return found;
}
