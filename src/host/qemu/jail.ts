/**
 * Runs a process as a VM's user in a jail, made by bubblewrap (bwrap(1)): a mount namespace with the system's programs and the
 * named files, read-only except its own, and its own process, IPC and host name namespaces.
 *
 * Invariants:
 * - paths are the same inside and outside, so the arguments identify a process;
 * - no secret is visible: no data folder, no home, of /etc only the resolvers, no /proc, no /sys, only the named devices;
 * - the process is the first of its process namespace. bubblewrap waits for it outside; its end does not end the process.
 */
import { execFile } from 'node:child_process';
import { lstatSync, readlinkSync } from 'node:fs';
import { chmod, mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { assert } from '../../shared/assert.ts';
import { errnoOf, messageOf } from '../../shared/errors.ts';
import { PROBE_UID, type VmUser } from './uid.ts';
import type { VmSpec } from './vm-spec.ts';

const run = promisify(execFile);
const PROBE_MS = 10_000;
export const CLEAN_ENV = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', LANG: 'C.UTF-8' } as const;
/** Links on a system with a merged /usr. */
const SYSTEM_FOLDERS = ['/bin', '/sbin', '/lib', '/lib32', '/lib64', '/libx32'];
const DEVICES = ['/dev/null', '/dev/urandom'];

export interface Jail {
  /** The folder mounted as /etc: a mounted file would not show a replaced resolv.conf. Null: none, for tools. */
  readonly etc_dir: string | null;
}

export interface JailFiles {
  readonly reads: readonly string[];
  readonly writes: readonly string[];
  readonly devices?: readonly string[];
}

/** The files of a VM's QEMU. All its sockets are in its runtime folder. */
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
  /** `operator`: root with only the capability to read any file, and without a network. */
  readonly user: VmUser | 'operator';
  /** bubblewrap writes the process's pid there, as JSON. With it the process outlives the agent; without, it ends with bubblewrap. */
  readonly info_fd?: number;
}

/** The command line that runs `command` in the jail. */
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
    // bubblewrap creates missing folders with access for root only.
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

/** A command prefix that switches to a VM's user for good. Switching clears the effect of `--die-with-parent`. */
export function asUser({ uid, gid }: VmUser, more: readonly string[] = []): string[] {
  const ids = ['--reuid', String(uid), '--regid', String(gid), '--clear-groups'];
  return ['setpriv', ...ids, '--inh-caps=-all', '--no-new-privs', ...more, '--'];
}

/** The jail of this host's VMs, or why they have none. Needs root. */
export async function openJail(
  etc_dir: string | null,
): Promise<
  { readonly jail: Jail; readonly problem: null } | { readonly jail: null; readonly problem: string }
> {
  const jail = { etc_dir };
  // On a full disk the old resolvers stay. If the folder is missing, the probe below fails.
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

/** QEMU's user network reloads the file when it changes. */
export async function refreshResolvers({ etc_dir }: Jail): Promise<void> {
  if (etc_dir === null) return;
  const path = join(etc_dir, 'resolv.conf');
  // A host without the file has no resolvers.
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

/** All parent folders of `paths`, parents first. */
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
