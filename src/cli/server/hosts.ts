/**
 * Implements `berth host …`, which runs on the server: add and remove hosts, set their capacity, labels and taints,
 * cordon and drain them.
 */
import { type Db, type Tx, transaction } from '../../control-plane/db/pool.ts';
import { requestRotation, setJoinToken } from '../../control-plane/fleet/credential-store.ts';
import {
  cordon,
  drain,
  type FleetHost,
  insertRemoteHost,
  listFleet,
  listUnsaved,
  markHostRemoved,
  type SetCapacity,
  setCapacity,
  setLabels,
  uncordon,
} from '../../control-plane/fleet/fleet-store.ts';
import { capacityOf, HOST_FRESH_SECONDS, listSilent, lockUse } from '../../control-plane/fleet/host-store.ts';
import { marginMs } from '../../control-plane/fleet/lease-monitor.ts';
import { hostState, isOfFleet } from '../../control-plane/fleet/place-vm.ts';
import { hashToken, JOIN_PREFIX, newToken } from '../../control-plane/identity/tokens.ts';
import { listStaying, type Staying } from '../../control-plane/vms/move-store.ts';
import { composeJoinToken, refusalOf } from '../../protocol/protocol.ts';
import { DEFAULT_LEASE_MS } from '../../protocol/types.ts';
import { rfc3339 } from '../../shared/clock.ts';
import { CommandError, EXIT } from '../command-error.ts';
import { labelsText } from '../commands/instance-view.ts';
import { bytes, cell, numberCell, plural, sizeCell, timeCell, when } from '../table.ts';
import { Terminal } from '../terminal.ts';
import { NAME_RULE } from '../values.ts';
import { noteOperator, type ServerContext } from './context.ts';
import { pinnedCertificate } from './fleet.ts';

/** @throws CommandError */
async function findHost(tx: Tx, name: string): Promise<FleetHost> {
  const found = (await listFleet(tx)).find((each) => each.name === name);
  if (!found)
    throw new CommandError(`there is no host ${name}`, {
      next: 'berth host ls',
      exit_code: EXIT.not_found,
    });
  return found;
}

/** Keeps placements away from it until the transaction's end. @throws CommandError */
async function lockHost(tx: Tx, name: string): Promise<FleetHost> {
  await lockUse(tx, (await findHost(tx, name)).id);
  return findHost(tx, name);
}

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
async function drainLines(db: Db | Tx, host: FleetHost): Promise<string[]> {
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

/** As typed, separated by commas; empty: none. */
export interface GivenLabels {
  readonly labels?: string | undefined;
  readonly taints?: string | undefined;
}

const LABEL = /^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$/;
const TAINT = /^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}(=(?:[^\p{C},][\u200c\u200d]?){0,255})?$/u;
const LABELS_MAX = 64;

function wordsIn(text: string): string[] {
  const words = text.split(',').filter((each) => each !== '');
  if (words.length <= LABELS_MAX) return words;
  throw new CommandError(`a host has at most ${LABELS_MAX} labels and taints`, { exit_code: EXIT.usage });
}

function labelsIn(text: string | undefined): Record<string, string> | null {
  if (text === undefined) return null;
  return Object.fromEntries(
    wordsIn(text).map((each) => {
      const at = each.indexOf('=');
      if (at < 1 || !LABEL.test(each.slice(0, at)) || !TAINT.test(each))
        throw new CommandError(`--labels takes KEY=VALUE,…, not ${each}`, { exit_code: EXIT.usage });
      return [each.slice(0, at), each.slice(at + 1)];
    }),
  );
}

function taintsIn(text: string | undefined): string[] | null {
  if (text === undefined) return null;
  const words = [...new Set(wordsIn(text))];
  const wrong = words.find((each) => !TAINT.test(each));
  if (wrong === undefined) return words;
  throw new CommandError(`--taints takes KEY or KEY=VALUE,…, not ${wrong}`, { exit_code: EXIT.usage });
}

function capacityIn({ cpus, memory }: GivenCapacity): SetCapacity {
  const gib = numberIn(memory, '--memory', MEMORY_MAX_GIB);
  return { cpus: numberIn(cpus, '--cpus', CPUS_MAX), memory_mib: gib === null ? null : gib * MIB_A_GIB };
}

/** Prints the join token of a new host. Without both sizes the host gets no VM. */
export async function addHost(
  server: ServerContext,
  name: string,
  given: GivenCapacity = {},
): Promise<string> {
  const { db } = server;
  const capacity = capacityIn(given);
  if (!/^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/.test(name))
    throw new CommandError(NAME_RULE, { exit_code: EXIT.usage });
  const cert = await pinnedCertificate(server);
  const token = newToken(JOIN_PREFIX);
  await transaction(db, async (tx) => {
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

/** Has the host replace its credential; with `join`, revokes it, and prints a token to join with anew. */
export async function rotateHost(server: ServerContext, name: string, join: boolean): Promise<string> {
  const certificate = join ? await pinnedCertificate(server) : null;
  return transaction(server.db, async (tx) => {
    const host = await findHost(tx, name);
    if (!host.remote)
      throw new CommandError(`${name} is this machine, whose agent uses the token in its data folder`, {
        exit_code: EXIT.state,
      });
    await noteOperator(tx, server, 'host.rotate', host.id, { name, join });
    if (certificate === null) {
      await requestRotation(tx, host.id);
      return `${name} replaces its credential within seconds of its next report.\n`;
    }
    const token = newToken(JOIN_PREFIX);
    await setJoinToken(tx, host.id, hashToken(token));
    return `${composeJoinToken(token, certificate)}\n`;
  });
}

export async function listHosts({ db }: ServerContext, terminal = new Terminal('human')): Promise<string> {
  const rows = (await listFleet(db)).filter(isOfFleet);
  const drains = await Promise.all(rows.map((host) => drainLines(db, host)));
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
      headings: ['MOST MEMORY', 'CPUS', 'LABELS', 'TAINTS', 'ID'],
      row: ({ id, remote, facts, cpus, memory_mib, labels, taints }) => {
        const capacity = facts === null ? null : capacityOf({ remote, facts, cpus, memory_mib });
        return [
          sizeCell(capacity ? capacity.memory_mib * MIB : null),
          numberCell(capacity?.cpus ?? null),
          labelsText(labels) || '-',
          taints.join(', ') || '-',
          id,
        ];
      },
    },
    quiet: ({ name }) => name,
    empty: 'No hosts.',
  });
  return terminal.format === 'human'
    ? listed + [...rows.flatMap(remarksOn), ...drains.flat()].join('')
    : listed;
}

/** Used and available memory. */
function memoryOf({ remote, facts, cpus, memory_mib, used_memory_mib }: FleetHost): string {
  if (!facts) return '-';
  const capacity = capacityOf({ remote, facts, cpus, memory_mib });
  const used = bytes(used_memory_mib * MIB);
  return capacity ? `${used} of ${bytes(capacity.memory_mib * MIB)}` : `${used}, capacity not set`;
}

/** Why a host gets no VM or is refused, and what to do. */
function remarksOn({ name, remote, cpus, memory_mib, protocol, refused }: FleetHost): string[] {
  const remarks: string[] = [];
  const refusal = protocol === null ? null : refusalOf(protocol);
  if (refusal !== null) remarks.push(`${name} is refused. ${refusal}\n`);
  if (refused)
    remarks.push(
      `${name} is refused until it joins with its new token. Its VMs are paused when its lease is over.\n`,
    );
  if (remote && (cpus === null || memory_mib === null)) {
    remarks.push(
      `${name} gets no VM, because its capacity is not set. Set it: berth host set ${name} --cpus N --memory GIB\n`,
    );
  }
  return remarks;
}

/** Sets labels and taints, and what VMs may use of a remote host. What is omitted stays. */
export async function setHost(
  server: ServerContext,
  name: string,
  given: GivenCapacity & GivenLabels,
): Promise<string> {
  const asked = capacityIn(given);
  const labels = labelsIn(given.labels);
  const taints = taintsIn(given.taints);
  const sized = asked.cpus !== null || asked.memory_mib !== null;
  if (!sized && labels === null && taints === null)
    throw new CommandError('give --cpus N, --memory GIB, --labels KEY=VALUE,… or --taints TAINT,…', {
      exit_code: EXIT.usage,
    });
  return transaction(server.db, async (tx) => {
    const host = await lockHost(tx, name);
    if (labels !== null || taints !== null)
      await setLabels(tx, host.id, { labels: labels ?? host.labels, taints: taints ?? host.taints });
    const words = {
      ...(labels === null ? {} : { labels: labelsText(labels) }),
      ...(taints === null ? {} : { taints: taints.join(', ') }),
    };
    if (!sized) {
      await noteOperator(tx, server, 'host.set', host.id, { name, ...words });
      return `Changed ${name}. Its VMs stay; the next placements go by it.\n`;
    }
    if (!host.remote)
      throw new CommandError(
        `${name} is this machine, which measures its own capacity; only a remote host's can be set`,
      );
    const capacity = {
      cpus: asked.cpus ?? host.cpus,
      memory_mib: asked.memory_mib ?? host.memory_mib,
    };
    await setCapacity(tx, host.id, capacity);
    await noteOperator(tx, server, 'host.set', host.id, { name, ...capacity, ...words });
    const { cpus, memory_mib } = capacity;
    if (cpus === null) return `${name} gets no VM before --cpus is set too.\n`;
    if (memory_mib === null) return `${name} gets no VM before --memory is set too.\n`;
    return `${name} gets VMs of at most ${cpus} CPUs, and of ${memory_mib / MIB_A_GIB} GiB in all, as far as it has them.\n`;
  });
}

/** `lost`: the machine is gone for good, with its VMs. They start elsewhere when its lease is over, as if it had fallen silent. */
export async function removeHost(server: ServerContext, name: string, lost: boolean): Promise<string> {
  return transaction(server.db, async (tx) => {
    const host = await lockHost(tx, name);
    if (!host.remote)
      throw new CommandError(`${name} is this machine, which cannot be removed`, {
        next: `berth host cordon ${name}, or berth host replace ${name} --machine-gone if that machine is gone`,
        exit_code: EXIT.state,
      });
    const unsaved = await listUnsaved(tx, host.id);
    if (!lost && host.vms > 0)
      throw new CommandError(
        `${host.vms} VMs are on ${name}: drain it first, or give --lost if that machine is gone for good`,
        { exit_code: EXIT.state },
      );
    if (!lost && unsaved.length > 0)
      throw new CommandError(
        `unsaved writes of ${unsaved.join(', ')} may be on ${name} alone: start or stop them there first, or give --lost`,
        { exit_code: EXIT.state },
      );
    await markHostRemoved(tx, host.id);
    await noteOperator(tx, server, 'host.remove', host.id, { name, lost });
    return `Removed ${name}, and revoked its credential.${afterRemoval(host, unsaved)}\n`;
  });
}

/**
 * Lets the next `npm start` with another data folder be the host of this name. Only an operator knows that the VMs of a silent
 * machine do not run.
 */
export async function replaceHost(server: ServerContext, name: string, gone: boolean): Promise<string> {
  return transaction(server.db, async (tx) => {
    const host = await lockHost(tx, name);
    if (host.remote)
      throw new CommandError(`${name} is a host of its own machine, not of npm start`, {
        next: `berth host rm ${name} --lost, then berth host add ${name}`,
        exit_code: EXIT.state,
      });
    if (!gone)
      throw new CommandError(
        `if the machine of ${name} is gone for good, with every VM on it, say so: berth host replace ${name} --machine-gone`,
        { exit_code: EXIT.usage },
      );
    // By the database's clock; what else its state says does not matter.
    const silent = host.last_seen_at === null || host.lost_at !== null;
    if (!silent && (await listSilent(tx, [host.id])).length === 0)
      throw new CommandError(
        `${name} reported less than ${HOST_FRESH_SECONDS} s ago, so its machine is not gone: switch it off first`,
        { exit_code: EXIT.state },
      );
    const unsaved = await listUnsaved(tx, host.id);
    await markHostRemoved(tx, host.id);
    await noteOperator(tx, server, 'host.replace', host.id, { name });
    return `Removed ${name}. The next npm start on this database is ${name}.${afterRemoval(host, unsaved)}\n`;
  });
}

/** When its VMs start elsewhere, in words. */
function afterRemoval({ lost_at, lease_ms, vms }: FleetHost, unsaved: readonly string[]): string {
  if ((vms === 0 && unsaved.length === 0) || lost_at !== null) return '';
  const kept_ms = lease_ms ?? DEFAULT_LEASE_MS;
  const wait_s = Math.ceil((kept_ms + marginMs(kept_ms)) / 1000);
  const when = ` Its VMs can start elsewhere in about ${wait_s} s, counted while a control plane runs: until then they may run there.`;
  return lease_ms !== null
    ? when
    : `${when} It had no lease: if it still runs and reaches no control plane, it does not pause them. Switch it off.`;
}
