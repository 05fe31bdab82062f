/**
 * Lets the unprivileged users of PostgreSQL and of the VMs traverse the path to a folder (`makeReachable`). Usually the
 * obstacle is a clone below a home folder of mode 0700. Each folder that such a user cannot traverse gets an ACL entry
 * `--x` for the user's group. Modes alone do not tell this, so a process with the user's uid tries the path.
 *
 * Also warns of SSH ports that Linux takes for outgoing connections (`outgoingPorts`).
 */
import { readFileSync } from 'node:fs';
import { lstat, realpath } from 'node:fs/promises';
import { dirname } from 'node:path';
import type { WeakSetting } from '../config/weak-settings.ts';
import { messageOf } from '../shared/errors.ts';
import { VM_GID } from '../shared/system-ids.ts';
import { lastLines, runCommand } from './run-command.ts';
import { type Say, StartError } from './start-error.ts';

export interface UnprivilegedUser {
  readonly uid: number;
  /** Its only group. */
  readonly gid: number;
  /** For messages: `virtual machines`. */
  readonly name: string;
}

/** All VMs: the first uid of their range, and their common group. */
export const VM_USER: UnprivilegedUser = { uid: VM_GID, gid: VM_GID, name: 'virtual machines' };

/** More folders than any path has: bounds the loop. */
const FOLDERS_MAX = 256;

/**
 * Lets `user` traverse the folder `target` and all above it. Must run as root.
 * @throws StartError naming the folder and what to do
 */
export async function makeReachable(target: string, user: UnprivilegedUser, say: Say): Promise<void> {
  const path = [...ancestors(target), ...ancestors(await realpath(target))];
  const granted = new Set<string>();
  for (;;) {
    const blocked = await firstBlocked(path, user);
    if (blocked === undefined) return;
    const folder = await realpath(blocked);
    if (granted.has(folder)) throw cannotTraverse(folder, user, 'the ACL entry has no effect');
    granted.add(folder);
    await grant(folder, user);
    say(
      `granted group ${user.gid} (${user.name}) traversal of ${folder} (ACL --x), because ${target} is below it`,
    );
  }
}

/** From the root down to `path` itself. */
function ancestors(path: string): string[] {
  const folders = [path];
  for (let at = path; dirname(at) !== at && folders.length < FOLDERS_MAX; at = dirname(at))
    folders.unshift(dirname(at));
  return folders;
}

async function firstBlocked(
  path: readonly string[],
  { uid, gid }: UnprivilegedUser,
): Promise<string | undefined> {
  const script = `for folder; do [ -x "$folder" ] || { printf %s "$folder"; exit 0; }; done`;
  const result = await runCommand('/bin/sh', ['-c', script, 'sh', ...path], { uid, gid, cwd: '/' }).catch(
    (error) => {
      // EINVAL: a user namespace without such ids (a rootless container).
      throw new StartError(`cannot run a process as user ${uid} here: ${messageOf(error)}`, 2, {
        cause: error,
      });
    },
  );
  if (result.code !== 0) {
    throw new StartError(`cannot run a process as user ${uid}: ${lastLines(result.stderr)}`);
  }
  return result.stdout === '' ? undefined : result.stdout;
}

async function grant(folder: string, user: UnprivilegedUser): Promise<void> {
  // With an ACL the mode's group bits are its mask. Setting the mask to those bits and x keeps setfacl from recomputing it,
  // which would enable entries that an earlier chmod had masked.
  const group_bits = ((await lstat(folder)).mode >> 3) & 7;
  const mask = `${group_bits & 4 ? 'r' : '-'}${group_bits & 2 ? 'w' : '-'}x`;
  let why: string;
  try {
    const result = await runCommand('setfacl', ['-m', `g:${user.gid}:--x,m::${mask}`, '--', folder]);
    if (result.code === 0) return;
    why = lastLines(result.stderr);
  } catch (error) {
    why = messageOf(error);
  }
  throw cannotTraverse(folder, user, why);
}

function cannotTraverse(folder: string, user: UnprivilegedUser, why: string): StartError {
  return new StartError(
    `user ${user.uid} (${user.name}) cannot traverse ${folder} (${why}); ` +
      `move the data folder (BERTH_DATA_DIR) and this project elsewhere, or run: chmod o+x ${folder}`,
  );
}

interface PortRange {
  readonly first: number;
  readonly last: number;
}

/** Finds SSH ports of instances that Linux takes for outgoing connections (net.ipv4.ip_local_port_range). */
export function outgoingPorts(ssh: PortRange, outgoing: PortRange | null = rangeHere()): WeakSetting[] {
  if (outgoing === null || ssh.last < outgoing.first || ssh.first > outgoing.last) return [];
  const found = `${ssh.first}-${ssh.last} has ports that Linux takes for outgoing connections (${outgoing.first}-${outgoing.last}): an instance's port is closed while one has it`;
  const next = `BERTH_SSH_PORTS below ${outgoing.first}, or net.ipv4.ip_local_port_range above it, on each machine with an ingress`;
  return [{ check: 'SSH ports', found, next }];
}

/** Null where it is not shown. */
function rangeHere(): PortRange | null {
  try {
    const words = readFileSync('/proc/sys/net/ipv4/ip_local_port_range', 'utf8').trim().split(/\s+/);
    return { first: Number(words[0]), last: Number(words[1]) };
  } catch {
    return null;
  }
}
