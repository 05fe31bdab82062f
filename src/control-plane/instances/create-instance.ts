/**
 * Creates an instance, empty or as a fork of another one: its row, disk, data keys and SSH address, within the quotas.
 * The disk of a fork begins as a generation of its parent; both share that generation's objects.
 */
import { createServer } from 'node:net';
import { present } from '../../shared/assert.ts';
import type { EgressMode } from '../../shared/egress-policy.ts';
import { AppError, invalid, RETRY_LATER_S } from '../../shared/errors.ts';
import { type InstanceId, newId } from '../../shared/ids.ts';
import type { QuotaLimits } from '../../shared/quotas.ts';
import type { RestartPolicy } from '../../shared/restart-policy.ts';
import { listenAddress, type SshListen } from '../../shared/setting-values.ts';
import type { ForkedFrom } from '../db/column-types.ts';
import { notify } from '../db/notify.ts';
import { type Tx, violates } from '../db/pool.ts';
import { type DiskKeys, makeDataKeys, shareDataKeys } from '../disks/data-keys.ts';
import { copyDisk, findRetained } from '../disks/generation-store.ts';
import { append } from '../events/append.ts';
import { actorOf, type Principal } from '../identity/principal.ts';
import { currentImage, imageKnown } from '../images/store.ts';
import { checkQuota } from '../organisations/quotas.ts';
import { lockInstanceOf, noSuchGeneration, refuseDeleting } from './change-instance.ts';
import { instanceView } from './model.ts';
import { type AddressRange, lockFreeAddress, type SshAddress, takeAddress } from './ssh-address-store.ts';
import { findInstance, type InstanceRow, insertInstance } from './store.ts';

export interface InstanceRequest {
  readonly name: string;
  readonly image: string;
  readonly cpus: number;
  readonly memory_mib: number;
  readonly disk_gib: number;
  readonly labels: Record<string, string>;
  readonly idle_timeout_seconds: number | null;
  readonly wake_on_connect: boolean;
  readonly restart: RestartPolicy;
  readonly auto_flush_seconds: number | null;
  readonly keep_last: number;
  readonly keep_daily_days: number;
  readonly egress_mode: EgressMode;
  readonly egress_allow: readonly string[];
  readonly host_labels: Record<string, string>;
  readonly tolerations: readonly string[];
  /** A script that root runs once at the first boot. */
  readonly user_data: string | null;
  /** Of a fork. */
  readonly forked_from?: ForkedFrom;
}

/** The SSH addresses of new instances, and where this machine's ingress listens for them. */
export interface SshEndpoint extends AddressRange {
  readonly listen: SshListen;
}

export interface CreationContext {
  readonly ssh: SshEndpoint;
  readonly disk_keys: DiskKeys;
  readonly quotas: QuotaLimits;
}

/**
 * Creates an instance with an empty disk, its data keys and an SSH address.
 * @throws AppError CONFLICT, INVALID_REQUEST, QUOTA_EXCEEDED, UNAVAILABLE
 */
export async function createInstance(
  tx: Tx,
  principal: Principal,
  context: CreationContext,
  request: InstanceRequest,
): Promise<InstanceRow> {
  if (!(await imageKnown(tx, request.image))) {
    throw invalid('image', `no host has the image "${request.image}"`);
  }
  // This locks the image against removal until the instance exists.
  const image = await currentImage(tx, request.image);
  const least_gib = Math.ceil((image?.size_bytes ?? 0) / 2 ** 30);
  if (request.disk_gib < least_gib) {
    throw invalid('disk_gib', `the image "${request.image}" needs at least ${least_gib}`);
  }
  await checkQuota(tx, context.quotas, principal.org_id, { instances: 1, disk_gib: request.disk_gib });
  const id = await insertNew(tx, principal, context, request);
  return announceInstance(tx, principal, id, 'instance.created', {});
}

/** Inserts the rows of a new instance: an empty disk, data keys, an SSH address. @throws AppError CONFLICT, UNAVAILABLE */
async function insertNew(
  tx: Tx,
  principal: Principal,
  { ssh, disk_keys }: CreationContext,
  request: InstanceRequest,
): Promise<InstanceId> {
  const address = await takeOpenableAddress(tx, ssh);
  const id = newId('inst');
  try {
    await insertInstance(tx, {
      ...request,
      id,
      ssh_host: address.host,
      ssh_port: address.port,
      forked_from: request.forked_from ?? null,
      org_id: principal.org_id,
      created_by: actorOf(principal),
    });
  } catch (error) {
    if (!violates(error, 'instances_org_id_name_key')) throw error;
    const message = `An instance named "${request.name}" exists already.`;
    throw new AppError('CONFLICT', { message, cause: error });
  }
  await makeDataKeys(tx, disk_keys, id);
  return id;
}

/** Appends the event of a new instance, and adds its route. */
async function announceInstance(
  tx: Tx,
  principal: Principal,
  id: InstanceId,
  type: 'instance.created' | 'instance.forked',
  data: Record<string, unknown>,
): Promise<InstanceRow> {
  const row = present(await findInstance(tx, principal.org_id, id), 'instance just made');
  await append(tx, {
    org_id: principal.org_id,
    instance_id: id,
    type,
    data: { instance: instanceView(row), ...data },
    actor: actorOf(principal),
  });
  await notify(tx, 'routes', id);
  return row;
}

/** Skips addresses that another program of this machine has open. */
async function takeOpenableAddress(tx: Tx, ssh: SshEndpoint): Promise<SshAddress> {
  const foreign: SshAddress[] = [];
  for (;;) {
    const address = await lockFreeAddress(tx, ssh, foreign);
    if (address === undefined) {
      const names = ssh.hosts.length > 1 ? ` of ${ssh.hosts.join(', ')}` : '';
      throw new AppError('UNAVAILABLE', {
        message: `SSH ports ${ssh.first_port}-${ssh.last_port}${names} are all in use. Delete an instance, widen BERTH_SSH_PORTS, or add a name to BERTH_SSH_HOST.`,
        retry_after_seconds: RETRY_LATER_S,
      });
    }
    if (await isOpenable(ssh.listen, address)) {
      await takeAddress(tx, address);
      return address;
    }
    foreign.push(address);
  }
}

/** Whether the port can be opened. An address of another machine cannot be tried, and counts as free. */
function isOpenable(listen: SshListen, { host: name, port }: SshAddress): Promise<boolean> {
  const host = listenAddress(listen, name);
  if (host === null) return Promise.resolve(true);
  return new Promise((resolve) => {
    const probe = createServer();
    probe.once('error', (error: NodeJS.ErrnoException) => resolve(error.code !== 'EADDRINUSE'));
    probe.listen({ host, port, exclusive: true }, () => probe.close(() => resolve(true)));
  });
}

export interface ForkRequest {
  readonly name: string;
  /** Null: the last durable generation. */
  readonly generation: number | null;
}

/**
 * Creates an instance whose disk begins as a generation of another's, in any state of that one's VM. No object is copied: the
 * fork holds the same objects and gets the keys to them, so it outlives its parent. The parent writes with a new data key
 * from then on. The fork has its own data keys and SSH port, a new host key at its first boot, the caller's SSH keys, and
 * `wake_on_connect` off.
 * @throws AppError NOT_FOUND, CONFLICT, QUOTA_EXCEEDED, UNAVAILABLE
 */
export async function forkInstance(
  tx: Tx,
  principal: Principal,
  context: CreationContext,
  from: InstanceId,
  { name, generation }: ForkRequest,
): Promise<InstanceRow> {
  // Lock order, as in a start: the instance before its organisation.
  const parent = await lockInstanceOf(tx, principal, from);
  const wanted = generation ?? parent.generation;
  if (generation !== null && !(await findRetained(tx, from, generation))) throw noSuchGeneration(generation);
  refuseDeleting(parent);
  if (wanted === 0) {
    throw new AppError('CONFLICT', {
      message: 'Nothing of the disk is saved yet. Start the VM and flush it (POST …/vm/flush) first.',
    });
  }
  await checkQuota(tx, context.quotas, principal.org_id, { instances: 1, disk_gib: parent.disk_gib });
  const { image, cpus, memory_mib, disk_gib, auto_flush_seconds, idle_timeout_seconds } = parent;
  const { keep_last, keep_daily_days, egress_mode, egress_allow, restart } = parent;
  const { host_labels, tolerations } = parent;
  const forked_from = { instance_id: from, generation: wanted, dirty_bytes: parent.dirty_bytes };
  const id = await insertNew(tx, principal, context, {
    name,
    labels: {},
    image,
    cpus,
    memory_mib,
    disk_gib,
    auto_flush_seconds,
    idle_timeout_seconds,
    wake_on_connect: false,
    restart,
    user_data: null,
    keep_last,
    keep_daily_days,
    egress_mode,
    egress_allow,
    host_labels,
    tolerations,
    forked_from,
  });
  await shareDataKeys(tx, context.disk_keys, from, id, parent.generation);
  await copyDisk(tx, from, id, wanted);
  return announceInstance(tx, principal, id, 'instance.forked', { forked_from });
}
