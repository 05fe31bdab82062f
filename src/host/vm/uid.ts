/**
 * The unprivileged user of each VM: numbers nobody else has, one per slot of the host, without entries in
 * /etc/passwd.
 * Invariant: two VMs that live at the same time have different users; the egress rules hold for the whole range.
 */
import { spawnSync } from 'node:child_process';
import { chmodSync, chownSync, lstatSync, mkdirSync, statSync, unlinkSync } from 'node:fs';
import { assert } from '../../lib/assert.ts';
import { errnoOf } from '../../lib/errors.ts';

export const VM_UID_BASE = 2_000_000;
export const VM_UID_COUNT = 1_000_000;
/** The last of the range: for test guests, which no slot ever reaches. */
export const PROBE_UID = VM_UID_BASE + VM_UID_COUNT - 1;

export interface VmUser {
  readonly uid: number;
  readonly gid: number;
}

/** The user of the VM in `slot` (0 to 999,998): the offset of its forward port in the host's range. */
export function vmUser(slot: number): VmUser {
  assert(Number.isInteger(slot) && slot >= 0 && slot < VM_UID_COUNT - 1, 'slot is out of range');
  return { uid: VM_UID_BASE + slot, gid: VM_UID_BASE + slot };
}

/**
 * The group that a VM's user needs to open /dev/kvm; null when any does, or none would, or there is no device. Never
 * root's: what it may read and write is the host's. A VM under KVM runs with this as its gid: QEMU 7.2 cannot be handed the open device.
 */
export function kvmGroup(device_path = '/dev/kvm'): number | null {
  try {
    const { gid, mode } = statSync(device_path);
    const everybody = (mode & 0o006) === 0o006;
    const group = (mode & 0o060) === 0o060 && gid !== 0;
    return group && !everybody ? gid : null;
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return null;
    throw error;
  }
}

/** Makes `path` (its parent exists) a folder of this user's, for QEMU to make its sockets in: 0700. An existing one is taken over. */
export function prepareRuntimeDir(path: string, uid: number, gid: number): void {
  try {
    mkdirSync(path, { mode: 0o700 });
  } catch (error) {
    if (errnoOf(error) !== 'EEXIST') throw error;
  }
  assert(lstatSync(path).isDirectory(), `${path} is not a folder`);
  chmodSync(path, 0o700);
  chownSync(path, uid, gid);
}

/**
 * Takes the folder of a VM's sockets from its user, once QEMU listens on them: passed through, no more. Whoever has broken out of
 * QEMU can put nothing in their place then, so what we open, make and give away by path in it is what it seems to be. Of
 * `sockets`, what is not one of that user's is removed.
 */
export function takeRuntimeDir(path: string, uid: number, sockets: readonly string[]): void {
  chownSync(path, 0, 0);
  chmodSync(path, 0o711);
  for (const socket of sockets) {
    const found = lstatSync(socket, { throwIfNoEntry: false });
    if (found?.isSocket() && found.uid === uid) chmodSync(socket, 0o600);
    else if (found && !found.isDirectory()) unlinkSync(socket);
  }
}

/**
 * Which of `paths` that user cannot read, by trying: modes, ACLs and every folder above count. The usual trap is a
 * data folder under a home of mode 0700.
 */
export function unreadablePaths(paths: readonly string[], user: VmUser): string[] {
  const script = 'for path; do [ -r "$path" ] || printf "%s\\0" "$path"; done';
  const tried = spawnSync('/bin/sh', ['-c', script, 'berth-read', ...paths], {
    uid: user.uid,
    gid: user.gid,
    cwd: '/',
    env: {},
    encoding: 'utf8',
    timeout: 5_000,
  });
  if (tried.error) throw tried.error;
  return tried.stdout.split('\0').filter((path) => path !== '');
}
