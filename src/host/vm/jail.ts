/**
 * What a process that runs as a VM's user can see of this host: a mount namespace that holds the system's programs and the files
 * named, read-only but for its own, and process, IPC and host name namespaces of its own. bubblewrap makes them (bwrap(1)).
 *
 * Invariants:
 * - paths inside are those outside, so a process is found by its arguments as before;
 * - nothing inside is a secret: no data folder, no home, no /etc but the resolvers, no /proc, no /sys, no devices but those named;
 * - the process is the first of its process namespace; bubblewrap waits for it outside, and its end does not end the process.
 */
import { execFile } from 'node:child_process';
import { lstatSync, readlinkSync } from 'node:fs';
import { chmod, mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { assert } from '../../lib/assert.ts';
import { errnoOf, messageOf } from '../../lib/errors.ts';
import type { VmSpec } from './qemu-command.ts';
import { PROBE_UID, type VmUser } from './uid.ts';

const run = promisify(execFile);
const PROBE_MS = 10_000;
export const CLEAN_ENV = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', LANG: 'C.UTF-8' } as const;
/** Of a system with a merged /usr these are links. */
const SYSTEM_FOLDERS = ['/bin', '/sbin', '/lib', '/lib32', '/lib64', '/libx32'];
const DEVICES = ['/dev/null', '/dev/urandom'];

export interface Jail {
  /** The /etc inside. A folder, so that a resolv.conf that takes the place of another is seen. Null: none, for tools. */
  readonly etc_dir: string | null;
}

export interface JailFiles {
  readonly reads: readonly string[];
  readonly writes: readonly string[];
  readonly devices?: readonly string[];
}

/** The files of a VM's QEMU. Its sockets are all in its runtime folder. */
export function filesOfVm(spec: VmSpec): JailFiles {
  return {
    reads: [spec.kernel_path, spec.initrd_path, spec.base_path],
    writes: [spec.overlay_path, spec.runtime_dir],
    devices: spec.accel === 'kvm' ? ['/dev/kvm'] : [],
  };
}

export interface JailedCommand {
  readonly jail: Jail;
  readonly files: JailFiles;
  /** `operator`: root without its powers but that to read any of the files, and without a network. */
  readonly user: VmUser | 'operator';
  /** Where bubblewrap says the pid of the process, as JSON. With it the process outlives us; else it ends with bubblewrap. */
  readonly info_fd?: number;
}

/** The words, the program's first, that run `command` in the jail. */
export function inJail({ jail, files, user, info_fd }: JailedCommand, command: readonly string[]): string[] {
  const [program = ''] = command;
  const own_program = program.startsWith('/') && !program.startsWith('/usr/') ? [program] : [];
  const reads = [...own_program, ...files.reads];
  const folders = foldersAbove(['/dev/null', ...reads, ...files.writes]);
  return [
    ...['bwrap', '--unshare-pid', '--unshare-ipc', '--unshare-uts', '--as-pid-1', '--chdir', '/'],
    ...(info_fd === undefined ? ['--die-with-parent'] : ['--info-fd', String(info_fd)]),
    ...['--ro-bind', '/usr', '/usr', ...SYSTEM_FOLDERS.flatMap(sameAsHere)],
    ...(jail.etc_dir === null ? [] : ['--ro-bind', jail.etc_dir, '/etc']),
    // bubblewrap makes missing folders for root alone.
    ...folders.flatMap((path) => ['--dir', path]),
    ...[...DEVICES, ...(files.devices ?? [])].flatMap((path) => ['--dev-bind', path, path]),
    ...reads.flatMap((path) => ['--ro-bind', path, path]),
    ...files.writes.flatMap((path) => ['--bind', path, path]),
    ...['--remount-ro', '/'],
    ...(user === 'operator'
      ? ['--unshare-net', '--cap-drop', 'ALL', '--cap-add', 'CAP_DAC_READ_SEARCH']
      : []),
    '--',
    ...(user === 'operator' ? [] : asUser(user, info_fd === undefined ? ['--pdeathsig', 'KILL'] : [])),
    ...command,
  ];
}

/** The words before a command that make it a VM's user's, for good. A change of user clears what `--die-with-parent` has set. */
export function asUser({ uid, gid }: VmUser, more: readonly string[] = []): string[] {
  const ids = ['--reuid', String(uid), '--regid', String(gid), '--clear-groups'];
  return ['setpriv', ...ids, '--inh-caps=-all', '--no-new-privs', ...more, '--'];
}

/** As root: the jail of this host's VMs, or why they have none. */
export async function openJail(
  etc_dir: string | null,
): Promise<
  { readonly jail: Jail; readonly problem: null } | { readonly jail: null; readonly problem: string }
> {
  const jail = { etc_dir };
  // On a full disk the old resolvers stay. A folder that is missing makes the probe below fail.
  await refreshResolvers(jail).catch(() => undefined);
  const user = { uid: PROBE_UID, gid: PROBE_UID };
  const [file = '', ...args] = inJail({ jail, user, files: { reads: [], writes: [] } }, ['true']);
  try {
    await run(file, args, { timeout: PROBE_MS, env: CLEAN_ENV });
    return { jail, problem: null };
  } catch (error) {
    const stderr = error instanceof Error && 'stderr' in error ? String(error.stderr).trim() : '';
    const why =
      errnoOf(error) === 'ENOENT'
        ? 'bwrap is not installed (Debian: bubblewrap)'
        : (stderr || messageOf(error)).split('\n')[0];
    return {
      jail: null,
      problem: `VMs run without namespaces of their own and see what their user may: ${why}. Mend it and restart Berth`,
    };
  }
}

/** QEMU's user network reads the file again once it has changed. */
export async function refreshResolvers({ etc_dir }: Jail): Promise<void> {
  if (etc_dir === null) return;
  const path = join(etc_dir, 'resolv.conf');
  // Of a host without one there are no resolvers.
  const wanted = (await textOf('/etc/resolv.conf')) ?? '';
  if (wanted === (await textOf(path))) return;
  await mkdir(etc_dir, { recursive: true });
  const temporary = `${path}.${process.pid}`;
  await writeFile(temporary, wanted).catch(async (error: unknown) => {
    await rm(temporary, { force: true });
    throw error;
  });
  for (const [each, mode] of [
    [etc_dir, 0o755],
    [temporary, 0o644],
  ] as const)
    await chmod(each, mode);
  await rename(temporary, path);
}

async function textOf(path: string): Promise<string | null> {
  return readFile(path, 'utf8').catch(() => null);
}

function sameAsHere(path: string): string[] {
  const found = lstatSync(path, { throwIfNoEntry: false });
  if (found?.isSymbolicLink()) return ['--symlink', readlinkSync(path), path];
  return found ? ['--ro-bind', path, path] : [];
}

/** Every folder on the way to these, the upper first. */
function foldersAbove(paths: readonly string[]): string[] {
  const found = new Set<string>();
  for (const path of paths) {
    assert(path.startsWith('/'), `${path} must be absolute`);
    const way: string[] = [];
    for (let at = dirname(path); at !== '/'; at = dirname(at)) way.unshift(at);
    for (const folder of way) found.add(folder);
  }
  return [...found];
}
