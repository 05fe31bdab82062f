/**
 * The process `agent`: runs the VMs of this host. Prepares the isolation of guests, chooses the accelerator, connects
 * to the control plane, and then runs {@link Agent}.
 */
import { join } from 'node:path';
import type { Config } from '../../config/config.ts';
import { type Paths, pathsIn } from '../../config/paths.ts';
import { CompressPool } from '../../disk-format/compress-pool.ts';
import { Agent } from '../../host/agent.ts';
import { BootSlots } from '../../host/boot-slots.ts';
import { RunCache } from '../../host/disk/run-cache.ts';
import { EgressControl } from '../../host/egress/egress-control.ts';
import { hostStore, permittedStore } from '../../host/host-store.ts';
import { findHostImage, ImageKeeper } from '../../host/images/host-images.ts';
import { fenceVms, readLease, startFencer } from '../../host/lease/fencer.ts';
import { HostLease } from '../../host/lease/host-lease.ts';
import { type GuestNetwork, mendForwarding, openGuestNetwork } from '../../host/network/guest-network.ts';
import { applyHostRules, dataFolderId } from '../../host/network/packet-rules.ts';
import { AcceleratorError, chooseAccelerator } from '../../host/qemu/accelerator.ts';
import {
  type CgroupMounts,
  hostCgroups,
  type Jail,
  kvmGroup,
  openJail,
  PROBE_UID,
  refreshResolvers,
} from '../../host/qemu/confinement.ts';
import { machineHash } from '../../host/qemu/migration.ts';
import { Templates } from '../../host/vm/templates.ts';
import { openStore } from '../../object-store/open-store.ts';
import { ControlPlaneClient, CredentialRefused } from '../../protocol/client.ts';
import { logNegotiated } from '../../protocol/protocol.ts';
import { messageOf } from '../../shared/errors.ts';
import type { Log } from '../../shared/log.ts';
import { VM_GID } from '../../shared/system-ids.ts';
import { readSecrets } from '../data-folder.ts';
import { HostCredential, keepControlPlanes, readControlPlanes } from '../join.ts';
import { makeReachable } from '../reachable.ts';
import { type Say, StartError } from '../start-error.ts';

const QEMU = 'qemu-system-x86_64';
const QEMU_IMG = 'qemu-img';

export interface AgentOptions {
  readonly config: Config;
  readonly log: Log;
  readonly say: Say;
  readonly signal: AbortSignal;
}

/** Runs until `signal` aborts; the VMs keep running. @throws StartError for what the operator must fix */
export async function runAgent({ config, log, say, signal }: AgentOptions): Promise<void> {
  const paths = pathsIn(config.data_dir);
  const separate_users = process.getuid?.() === 0;
  const image = await findHostImage(paths.images, 'debian-12', null);
  if (!image) throw new StartError(`${paths.debian_12} has no image; npm start builds it`, 1);
  // QEMU opens /dev/kvm itself, so under KVM it has the device's group, which must reach the data folder too.
  const kvm_gid = kvmGroup() ?? VM_GID;
  if (separate_users && kvm_gid !== VM_GID) await openFoldersTo(kvm_gid, paths, say);
  const enclosure = await encloseGuests(config, paths, say, separate_users);
  const { jail, network } = enclosure;
  const choice = await requireAccelerator({
    setting: config.accel,
    qemu_binary: QEMU,
    kernel_path: image.kernel_path,
    initrd_path: image.initrd_path,
    cache_path: join(paths.run, 'accelerator.json'),
    ...(separate_users ? { run_as: { uid: PROBE_UID, gid: kvm_gid }, jail } : {}),
  });
  const vm_gid = choice.accel === 'kvm' ? kvm_gid : VM_GID;
  say(`accelerator: ${choice.accel} (${choice.reason})`);
  log.info(choice, 'accelerator');
  const { client, rotateCredential } = await connect(config, log, signal);
  if (signal.aborted) return;
  const pool = new CompressPool();
  const store = hostStore(client, await storeOf(config, client, log));
  const lease = new HostLease({
    client,
    paths,
    log,
    startFencer: () => startFencer(paths, config.log_level),
  });
  const images = new ImageKeeper({ images_dir: paths.images, client, store, log });
  const boots = new BootSlots();
  const templates = new Templates({
    enabled: config.fast_start,
    templates_dir: paths.templates,
    images_dir: paths.images,
    images,
    boots,
    log,
    accel: choice.accel,
    network: network === null ? 'user' : 'tap',
    qemu_binary: QEMU,
    qemu_img_binary: QEMU_IMG,
    run_as: separate_users ? { uid: PROBE_UID, gid: vm_gid } : null,
    jail,
  });
  const agent = new Agent(
    {
      paths,
      log,
      client,
      lease,
      store,
      images,
      pool,
      runs: new RunCache({ store, pool }),
      boots,
      templates,
      accel: choice.accel,
      qemu_binary: QEMU,
      qemu_img_binary: QEMU_IMG,
      vm_gid: separate_users ? vm_gid : null,
      jail,
      cgroups: cgroupsOf(config),
      network,
      egress: new EgressControl({ network, client, log }),
    },
    {
      accelerator_reason: choice.reason,
      machine: await machineHash(QEMU, { accel: choice.accel, network: network === null ? 'user' : 'tap' }),
      rotateCredential,
      isolate: () => isolate(paths.data, separate_users, { ...enclosure, log }),
    },
  );
  await agent.run(signal);
  await pool.close();
  await client.close();
}

/** What guests run in, or what is missing of it. */
async function encloseGuests(config: Config, paths: Paths, say: Say, separate_users: boolean) {
  const { jail, problem: jail_problem } = separate_users ? await openJail(paths.jail_etc) : NO_JAIL;
  const { network, problem: network_problem } = separate_users
    ? await openGuestNetwork(config.data_dir, config.guest_network)
    : NO_NETWORK;
  if (network && network_problem !== null) say(network_problem);
  return { jail, jail_problem, network, network_problem };
}

/** A host that joined has no credentials for the bucket. */
async function storeOf({ join: joined, s3, data_dir }: Config, client: ControlPlaneClient, log: Log) {
  return joined ? permittedStore(client, log) : openStore({ s3, folder: pathsIn(data_dir).objects, log });
}

async function openFoldersTo(kvm_gid: number, paths: Paths, say: Say): Promise<void> {
  const user = { uid: PROBE_UID, gid: kvm_gid, name: 'virtual machines under KVM' };
  for (const folder of [paths.debian_12, paths.overlays, paths.vms, paths.templates]) {
    await makeReachable(folder, user, say);
  }
}

/** @throws StartError when the accelerator that BERTH_ACCEL names does not work */
async function requireAccelerator(options: Parameters<typeof chooseAccelerator>[0]) {
  try {
    return await chooseAccelerator(options);
  } catch (error) {
    if (!(error instanceof AcceleratorError)) throw error;
    throw new StartError(`BERTH_ACCEL: ${error.message}`, 2, { cause: error });
  }
}

/** A joined host has its own parent group, in case the first host is on this machine too. */
function cgroupsOf({ join: joined, data_dir }: Config): CgroupMounts | null {
  const mounts = hostCgroups();
  return mounts && joined ? { ...mounts, parent: `berth-${dataFolderId(data_dir)}` } : mounts;
}

/** A host on another machine joins first, if it has not yet. */
async function connect(config: Config, log: Log, signal: AbortSignal) {
  const { join: joined, secret_key, data_dir } = config;
  const paths = pathsIn(data_dir);
  if (joined === null) {
    const { host_token: token } = await readSecrets(paths, secret_key);
    return {
      client: new ControlPlaneClient(
        { address: `unix:${paths.agent_api_socket}`, token },
        logNegotiated(log),
      ),
      rotateCredential: async () => undefined,
    };
  }
  const { control_plane, token_path: join_path } = joined;
  const path = paths.host_credential;
  const place = { path, join_path, control_plane, log, signal };
  const credential = await HostCredential.open(place).catch((error: unknown) => {
    if (error instanceof StartError && error.cause instanceof CredentialRefused)
      pauseWithoutLease(paths, log);
    throw error;
  });
  const { fingerprint } = credential;
  const token = () => credential.token;
  const known = await readControlPlanes(paths, fingerprint);
  const client = new ControlPlaneClient(
    { address: control_plane, token, fingerprint, known },
    logNegotiated(log),
    keepControlPlanes(paths, fingerprint, log),
  );
  return { client, rotateCredential: () => credential.rotate(client) };
}

/** A host that may not join may have been removed, and its VMs started elsewhere. If it has a lease, the fencer pauses them. */
function pauseWithoutLease(paths: Paths, log: Log): void {
  if (readLease(paths.lease) !== null) return;
  const paused = fenceVms(paths).map(({ instance_id }) => instance_id);
  if (paused.length > 0)
    log.error({ paused }, 'this host is refused: its VMs are paused until it has joined');
}

/** Without root there is neither; {@link isolate} reports that. */
const NO_JAIL = { jail: null, problem: null } as const;
const NO_NETWORK = { network: null, problem: null } as const;

interface Jailing {
  readonly jail: Jail | null;
  readonly jail_problem: string | null;
  readonly network: GuestNetwork | null;
  readonly network_problem: string | null;
  readonly log: Log;
}

/** Sets up the isolation of VMs. Returns its gaps, or null. */
async function isolate(
  data_dir: string,
  separate_users: boolean,
  { jail, jail_problem, network, network_problem, log }: Jailing,
): Promise<string | null> {
  if (!separate_users)
    return 'not run as root: VMs share one user, see all its files, and have no egress rules';
  if (jail)
    await refreshResolvers(jail).catch((error: unknown) =>
      log.warn({ reason: messageOf(error) }, "the guests' resolvers could not be refreshed"),
    );
  const host = network ? await mendForwarding(network) : { chains: [], problem: network_problem };
  const egress = await applyHostRules({
    data_folder_id: dataFolderId(data_dir),
    ...(network ? { egress_proxy_uid: network.egress_proxy_uid } : {}),
    chains: host.chains,
  });
  const found = [egress.closed ? null : egress.reason, jail_problem, host.problem];
  const problems = found.filter((each) => each !== null);
  return problems.length === 0 ? null : problems.join('; ');
}
