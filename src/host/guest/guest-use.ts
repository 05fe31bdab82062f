/**
 * Asks a guest how much disk, memory and network it uses, and grows its root file system. The answers come from files
 * of the guest and one small command: the guest agent's own commands for this list every mount and every interface, of
 * which there may be hundreds.
 */

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { FileSystemUse } from '../../protocol/host-types.ts';
import { untrustedText } from '../../shared/untrusted-text.ts';
import type { GuestCommands } from './guest-agent.ts';
import { guestExec, readGuestFile } from './guest-commands.ts';

const BUSYBOX = '/usr/lib/berth/busybox';
const MEMINFO_BYTES = 16 * 1024;
const NET_DEV_BYTES = 64 * 1024;
/** Of a line of /proc/net/dev, after the name: received bytes first, sent bytes ninth (proc(5)). */
const SENT_BYTES_FIELD = 8;

interface Options {
  readonly timeout_ms: number;
}

/** How full the root file system is, as unprivileged users see it. null: the guest gave no valid answer. */
export async function rootFileSystemUse(
  agent: GuestCommands,
  options: Options,
): Promise<FileSystemUse | null> {
  const args = ['stat', '-f', '-c', '%S %b %f %a', '/'];
  const { stdout } = await guestExec(agent, { path: BUSYBOX, args, ...options });
  const said = /^(\d{1,15}) (\d{1,15}) (\d{1,15}) (\d{1,15})\n$/.exec(stdout.toString('latin1'));
  if (!said) return null;
  const [block_bytes = 0, blocks = 0, free = 0, available = 0] = said.slice(1).map(Number);
  const used_bytes = count((blocks - free) * block_bytes);
  const total_bytes = count((blocks - free + available) * block_bytes);
  if (used_bytes === null || total_bytes === null || total_bytes === 0) return null;
  return { used_bytes, total_bytes };
}

export interface MemoryUse {
  /** Without memory that can be reclaimed at once. */
  readonly used_bytes: number | null;
  readonly total_bytes: number | null;
}

export async function memoryUse(agent: GuestCommands, options: Options): Promise<MemoryUse> {
  const meminfo = (await readGuestFile(agent, '/proc/meminfo', MEMINFO_BYTES, options)).toString('latin1');
  const kib = (name: string) => count(Number(new RegExp(`^${name}: +([0-9]+) kB$`, 'm').exec(meminfo)?.[1]));
  const [total, available] = [kib('MemTotal'), kib('MemAvailable')];
  const known = total !== null && available !== null && available <= total;
  return known
    ? { used_bytes: (total - available) * 1024, total_bytes: total * 1024 }
    : { used_bytes: null, total_bytes: null };
}

export interface NetworkUse {
  readonly received_bytes: number | null;
  readonly sent_bytes: number | null;
}

/** Of its first interface, since the boot. */
export async function networkUse(agent: GuestCommands, options: Options): Promise<NetworkUse> {
  const table = (await readGuestFile(agent, '/proc/net/dev', NET_DEV_BYTES, options)).toString('latin1');
  const fields = (/^ *eth0: *([0-9 ]+)$/m.exec(table)?.[1] ?? '').split(/ +/);
  const bytesIn = (field: string | undefined) => (field ? count(Number(field)) : null);
  return { received_bytes: bytesIn(fields[0]), sent_bytes: bytesIn(fields[SENT_BYTES_FIELD]) };
}

/** A guest can send anything. */
function count(value: number): number | null {
  return Number.isSafeInteger(value) && value >= 0 ? value : null;
}

const SCRIPT = readFileSync(join(import.meta.dirname, 'grow-root.pl'), 'utf8');
/** Every image has the perl of debian-12 there. */
const PERL = '/usr/lib/berth/perl';
const GROW_MS = 30_000;

/**
 * Grows the root file system of a running guest to its disk's size.
 * Rejects, also with the guest agent's errors, unless the guest says that the file system has at least `bytes`.
 */
export async function growRoot(agent: GuestCommands, bytes: number, signal: AbortSignal): Promise<void> {
  const { exit_code, stderr } = await guestExec(agent, {
    path: `${PERL}/ld-linux-x86-64.so.2`,
    args: ['--library-path', PERL, `${PERL}/perl`, '-', String(bytes)],
    input: SCRIPT,
    timeout_ms: GROW_MS,
    signal,
  });
  if (exit_code !== 0)
    throw new Error(untrustedText(stderr.toString('utf8')) || `the guest's script ended with ${exit_code}`);
}
