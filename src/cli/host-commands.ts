/** `berth host …`, on the server. */
import { composeJoinToken } from '../agent-api/join-token.ts';
import { refusalOf } from '../agent-api/protocol.ts';
import { HOST_PREFIX, hashToken, newToken } from '../auth/tokens.ts';
import { hostsCertificate } from '../control-planes/hosts-certificate.ts';
import { type Tx, transaction } from '../db/pool.ts';
import {
  countUnreleased,
  type FleetHost,
  insertRemoteHost,
  listFleet,
  listUnsaved,
  markRemoved,
  type SetCapacity,
  setCapacity,
  setDraining,
} from '../hosts/fleet-store.ts';
import { hostState, isOfFleet } from '../hosts/host-state.ts';
import { capacityOf, lockPlacement } from '../hosts/store.ts';
import { rfc3339 } from '../lib/clock.ts';
import { CommandError } from './command-error.ts';
import { EXIT } from './exit-codes.ts';
import { bytes, cell, numberCell, sizeCell, timeCell } from './format.ts';
import { NAME_RULE } from './numbers.ts';
import { noteOperator, type ServerContext } from './server-context.ts';
import { Terminal } from './terminal.ts';

const MIB = 2 ** 20;

/** As typed: processors, and memory in GiB. */
export interface GivenCapacity {
  readonly cpus?: string | undefined;
  readonly memory?: string | undefined;
}

const MIB_A_GIB = 1024;
const CPUS_MAX = 4_096;
const MEMORY_MAX_GIB = 65_536;

function numberIn(text: string | undefined, what: string, max: number): number | null {
  if (text === undefined) return null;
  const number = /^[0-9]{1,6}$/.test(text) ? Number(text) : 0;
  if (number < 1 || number > max) {
    throw new CommandError(`${what} is a whole number from 1 to ${max}`, { exit_code: EXIT.usage });
  }
  return number;
}

function capacityIn({ cpus, memory }: GivenCapacity): SetCapacity {
  const gib = numberIn(memory, '--memory', MEMORY_MAX_GIB);
  return { cpus: numberIn(cpus, '--cpus', CPUS_MAX), memory_mib: gib === null ? null : gib * MIB_A_GIB };
}

/** Prints the token of a new host, once. Without both sizes the host gets no VM. */
export async function addHost(
  server: ServerContext,
  name: string,
  given: GivenCapacity = {},
): Promise<string> {
  const { db, config } = server;
  const capacity = capacityIn(given);
  if (!/^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/.test(name))
    throw new CommandError(NAME_RULE, { exit_code: EXIT.usage });
  if (config.hosts_listen === null)
    throw new CommandError(
      'BERTH_HOSTS_LISTEN is not set: set it to the address at which hosts reach this machine',
    );
  const { cert } = await hostsCertificate(db, server.secret_key);
  const token = newToken(HOST_PREFIX);
  await transaction(db, async (tx) => {
    // Otherwise the new host would get these VMs, and restart them from their heads without a report of the loss.
    const left = await countUnreleased(tx, name);
    if (left > 0)
      throw new CommandError(
        `${left} VMs of the ${name} that was removed are not given up yet: Berth does so within seconds while it runs`,
      );
    const id = await insertRemoteHost(tx, name, hashToken(token), capacity);
    if (id === null)
      throw new CommandError(`there is a host ${name} already`, {
        next: `another name, or berth host rm ${name}`,
        exit_code: EXIT.state,
      });
    await noteOperator(tx, server, 'host.add', id, { name, ...capacity });
  });
  return `${composeJoinToken(token, cert)}\n`;
}

export async function listHosts({ db }: ServerContext, terminal = new Terminal('human')): Promise<string> {
  const rows = (await listFleet(db)).filter(isOfFleet);
  const listed = terminal.listText(rows, {
    headings: ['NAME', 'STATE', 'VMS', 'MEMORY', 'ACCELERATOR', 'LAST SEEN'],
    row: (host) => [
      host.name,
      hostState(host),
      numberCell(host.vms),
      cell(memoryOf(host), host.used_memory_mib * MIB),
      host.facts?.accelerator ?? '-',
      timeCell(host.last_seen_at ? rfc3339(host.last_seen_at) : null),
    ],
    more: {
      headings: ['MOST MEMORY', 'CPUS', 'ID'],
      row: ({ id, remote, facts, cpus, memory_mib }) => {
        const capacity = facts === null ? null : capacityOf({ remote, facts, cpus, memory_mib });
        return [
          sizeCell(capacity ? capacity.memory_mib * MIB : null),
          numberCell(capacity?.cpus ?? null),
          id,
        ];
      },
    },
    quiet: ({ name }) => name,
    empty: 'No hosts.',
  });
  return terminal.format === 'human' ? listed + rows.flatMap(remarksOn).join('') : listed;
}

/** Used and available memory. */
function memoryOf({ remote, facts, cpus, memory_mib, used_memory_mib }: FleetHost): string {
  if (!facts) return '-';
  const capacity = capacityOf({ remote, facts, cpus, memory_mib });
  const used = bytes(used_memory_mib * MIB);
  return capacity ? `${used} of ${bytes(capacity.memory_mib * MIB)}` : `${used}, capacity not set`;
}

/** Why a host gets no VM, and what to do. */
function remarksOn({ name, remote, cpus, memory_mib, protocol }: FleetHost): string[] {
  const remarks: string[] = [];
  const refusal = protocol === null ? null : refusalOf(protocol);
  if (refusal !== null) remarks.push(`${name} is refused. ${refusal}\n`);
  if (remote && (cpus === null || memory_mib === null)) {
    remarks.push(
      `${name} gets no VM, because its capacity is not set. Set it: berth host set ${name} --cpus N --memory GIB\n`,
    );
  }
  return remarks;
}

/** Sets what VMs may use of a remote host. An omitted size stays. */
export async function setHost(server: ServerContext, name: string, given: GivenCapacity): Promise<string> {
  const asked = capacityIn(given);
  if (asked.cpus === null && asked.memory_mib === null)
    throw new CommandError('give --cpus N, --memory GIB, or both', { exit_code: EXIT.usage });
  return transaction(server.db, async (tx) => {
    await lockPlacement(tx);
    const host = await findHost(tx, name);
    if (!host.remote)
      throw new CommandError(
        `${name} is this machine, which measures its own capacity; only a remote host's can be set`,
      );
    const capacity = {
      cpus: asked.cpus ?? host.cpus,
      memory_mib: asked.memory_mib ?? host.memory_mib,
    };
    await setCapacity(tx, host.id, capacity);
    await noteOperator(tx, server, 'host.set', host.id, { name, ...capacity });
    const { cpus, memory_mib } = capacity;
    if (cpus === null) return `${name} gets no VM before --cpus is set too.\n`;
    if (memory_mib === null) return `${name} gets no VM before --memory is set too.\n`;
    return `${name} gets VMs of at most ${cpus} CPUs, and of ${memory_mib / MIB_A_GIB} GiB in all, as far as it has them.\n`;
  });
}

/** Places no more VMs there; running ones continue. */
export async function drainHost(server: ServerContext, name: string, undo: boolean): Promise<string> {
  const host = await transaction(server.db, async (tx) => {
    const found = await findHost(tx, name);
    await setDraining(tx, found.id, !undo);
    await noteOperator(tx, server, undo ? 'host.undrain' : 'host.drain', found.id, { name });
    return found;
  });
  if (undo) return `${name} takes VMs again.\n`;
  return host.vms === 0
    ? `${name} takes no new VMs, and has none.\n`
    : `${name} takes no new VMs. ${host.vms} still there: each moves at its next stop and start.\n`;
}

/** `lost`: the machine is gone for good, with its VMs. */
export async function removeHost(server: ServerContext, name: string, lost: boolean): Promise<string> {
  return transaction(server.db, async (tx) => {
    await lockPlacement(tx);
    const host = await findHost(tx, name);
    if (!host.remote)
      throw new CommandError(`${name} is this machine, which cannot be removed`, {
        next: `berth host drain ${name}`,
        exit_code: EXIT.state,
      });
    const unsaved = await listUnsaved(tx, host.id);
    if (!lost && host.vms > 0)
      throw new CommandError(
        `${host.vms} VMs are on ${name}: drain it and stop them, or give --lost if that machine is gone for good`,
        { exit_code: EXIT.state },
      );
    if (!lost && unsaved.length > 0)
      throw new CommandError(
        `unsaved writes of ${unsaved.join(', ')} may be on ${name} alone: start or stop them there first, or give --lost`,
        { exit_code: EXIT.state },
      );
    await markRemoved(tx, host.id);
    await noteOperator(tx, server, 'host.remove', host.id, { name, lost });
    return `Removed ${name}, and revoked its token.\n`;
  });
}

async function findHost(tx: Tx, name: string): Promise<FleetHost> {
  const found = (await listFleet(tx)).find((each) => each.name === name);
  if (!found)
    throw new CommandError(`there is no host ${name}`, {
      next: 'berth host ls',
      exit_code: EXIT.not_found,
    });
  return found;
}
