/**
 * The unprivileged user of each VM: one uid for each slot of the host, from an unused range, without an entry in /etc/passwd.
 * Invariant: concurrent VMs have different users. The egress rules cover the whole range.
 */
import { chmodSync, chownSync, lstatSync, mkdirSync, statSync, unlinkSync } from 'node:fs';
import { assert } from '../../shared/assert.ts';
import { errnoOf } from '../../shared/errors.ts';

export const VM_UID_BASE = 2_000_000;
export const VM_UID_COUNT = 1_000_000;
/** The last of the range, for test guests. No slot reaches it. */
export const PROBE_UID = VM_UID_BASE + VM_UID_COUNT - 1;

/**
 * The user of an installation's egress proxy, beyond those of VMs. Each has its own: the rules of an installation that was removed
 * stay in the kernel, with the resolvers and networks of that time, and must not bind another's egress proxy.
 */
export function egressProxyUid(data_folder_id: string): number {
  return VM_UID_BASE + VM_UID_COUNT + (Number.parseInt(data_folder_id.slice(0, 8), 16) % VM_UID_COUNT);
}

export interface VmUser {
  readonly uid: number;
  readonly gid: number;
}

/** The user of the VM in `slot` (0 to 999,998), which is the offset of its forwarded port in the host's range. */
export function vmUser(slot: number): VmUser {
  assert(Number.isInteger(slot) && slot >= 0 && slot < VM_UID_COUNT - 1, 'slot is out of range');
  return { uid: VM_UID_BASE + slot, gid: VM_UID_BASE + slot };
}

/**
 * The group that a VM's user needs for /dev/kvm; null: none is needed, none helps, or there is no device. Never root's group,
 * which has access to the host's files. A VM with KVM has this gid, because QEMU 7.2 does not accept an open device.
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

/** Creates `path` (its parent exists) for QEMU's sockets, owned by this user, 0700. Takes over an existing folder. */
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
 * Takes the folder of a VM's sockets from its user once QEMU listens, leaving it only search permission. A compromised QEMU
 * then cannot replace anything in it, so the agent may open, create and chown files there by path. Removes those of `sockets`
 * that are not sockets of that user.
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
