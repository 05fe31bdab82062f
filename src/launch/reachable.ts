/**
 * Makes a folder reachable for the unprivileged users this program runs others as: PostgreSQL's and each VM's. The
 * usual trap is a clone below a home of mode 0700. Each folder on the way that such a user can't pass gets an ACL entry
 * `--x` for that user's group: pass, neither list nor read. Whether one can pass is not computed from modes but tried,
 * by a process that runs as that user.
 */
import { lstat, realpath } from 'node:fs/promises';
import { dirname } from 'node:path';
import { messageOf } from '../lib/errors.ts';
import { VM_GID } from '../lib/system-ids.ts';
import { lastLines, runCommand } from './run-command.ts';
import { type Say, StartError } from './start-error.ts';

export interface Passenger {
  readonly uid: number;
  /** Its only group. */
  readonly gid: number;
  /** For messages: `the virtual machines`. */
  readonly name: string;
}

/** Stands for all VMs: the first uid of their range, and their common group. */
export const VM_PASSENGER: Passenger = { uid: VM_GID, gid: VM_GID, name: 'virtual machines' };

/** More folders than any path has; a guard against going round. */
const FOLDERS_MAX = 256;

/**
 * After this `passenger` can pass through `target` (a folder) and all above it. Must run as root. Throws
 * {@link StartError} naming the folder and the ways out when it can't be had.
 */
export async function makeReachable(target: string, passenger: Passenger, say: Say): Promise<void> {
  const way = [...ancestors(target), ...ancestors(await realpath(target))];
  const granted = new Set<string>();
  for (;;) {
    const closed = await firstClosed(way, passenger);
    if (closed === undefined) return;
    const folder = await realpath(closed);
    if (granted.has(folder)) throw cantPass(folder, passenger, 'the ACL entry has no effect');
    granted.add(folder);
    await grant(folder, passenger);
    say(
      `granted group ${passenger.gid} (${passenger.name}) passage through ${folder} (ACL --x), because ${target} lies below it`,
    );
  }
}

/** From the root down to `path` itself. */
function ancestors(path: string): string[] {
  const way = [path];
  for (let at = path; dirname(at) !== at && way.length < FOLDERS_MAX; at = dirname(at))
    way.unshift(dirname(at));
  return way;
}

async function firstClosed(way: readonly string[], { uid, gid }: Passenger): Promise<string | undefined> {
  const script = `for folder; do [ -x "$folder" ] || { printf %s "$folder"; exit 0; }; done`;
  const result = await runCommand('/bin/sh', ['-c', script, 'sh', ...way], { uid, gid, cwd: '/' }).catch(
    (error) => {
      // EINVAL: a user namespace without such ids (a rootless container).
      throw new StartError(`can't run a process as user ${uid} here: ${messageOf(error)}`, 2, {
        cause: error,
      });
    },
  );
  if (result.code !== 0) {
    throw new StartError(`can't run a process as user ${uid}: ${lastLines(result.stderr)}`);
  }
  return result.stdout === '' ? undefined : result.stdout;
}

async function grant(folder: string, passenger: Passenger): Promise<void> {
  // The group bits of the mode are the ACL's mask once there is an ACL. Setting the mask ourselves to just those and x
  // keeps setfacl from recomputing it, which would revive entries that an earlier chmod has switched off.
  const group_bits = ((await lstat(folder)).mode >> 3) & 7;
  const mask = `${group_bits & 4 ? 'r' : '-'}${group_bits & 2 ? 'w' : '-'}x`;
  let why: string;
  try {
    const result = await runCommand('setfacl', ['-m', `g:${passenger.gid}:--x,m::${mask}`, '--', folder]);
    if (result.code === 0) return;
    why = lastLines(result.stderr);
  } catch (error) {
    why = messageOf(error);
  }
  throw cantPass(folder, passenger, why);
}

function cantPass(folder: string, passenger: Passenger, why: string): StartError {
  return new StartError(
    `user ${passenger.uid} (${passenger.name}) can't pass through ${folder} (${why}); ` +
      `set BERTH_DATA_DIR to a folder elsewhere (and keep this project elsewhere too), or run: chmod o+x ${folder}`,
  );
}
