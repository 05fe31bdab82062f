/**
 * Makes and finds the templates of this host: memory images of booted guests that a start uses instead of booting.
 * After a boot that found no template, one is made in the background, one at a time: the image boots with
 * `berth.template=1` until its init sleeps, and the memory is saved.
 *
 * - A start never fails or waits because of templates: without one, the VM boots.
 * - If a template cannot be made, or was rejected REJECTIONS times, no template is made or used for such machines until
 *   the agent restarts.
 */
import { readdirSync } from 'node:fs';
import { chmod, type FileHandle, mkdir, rm } from 'node:fs/promises';
import { setPriority } from 'node:os';
import { join } from 'node:path';
import { Signal } from '../../shared/concurrency.ts';
import { messageOf } from '../../shared/errors.ts';
import { newId } from '../../shared/ids.ts';
import type { Log } from '../../shared/log.ts';
import { pause } from '../../shared/retry.ts';
import type { BootSlots } from '../boot-slots.ts';
import { createOverlay, ensureRoom } from '../disk/overlay-files.ts';
import { openAgentChannel } from '../guest/guest-agent.ts';
import { type ImageKeeper, listHostImages } from '../images/host-images.ts';
import type { VmNetwork } from '../network/addresses.ts';
import { filesOfVm, type Jail, prepareRuntimeDir } from '../qemu/confinement.ts';
import { hardwareTraits, maxStreamBytes, qemuVersion, saveStream } from '../qemu/migration.ts';
import { type Accelerator, qemuArguments, type VmSpec, vmSockets } from '../qemu/qemu-command.ts';
import {
  findOrphans,
  freeLoopbackPort,
  killProcess,
  type LaunchedVm,
  launchVm,
  type ProcessIdentity,
  waitForExit,
} from '../qemu/qemu-process.ts';
import type { QmpClient } from '../qemu/qmp-client.ts';
import {
  boundTemplates,
  fileIdentity,
  findTemplate,
  isAsleep,
  makingFolder,
  noteUse,
  openMemory,
  publishTemplate,
  removeTemplate,
  type Shape,
  type Template,
  templateKey,
  verifyMemory,
  writeMemory,
} from './template-files.ts';

const REJECTIONS = 2;
const IDLE_TRY_MS = 500;
const LOOK_EVERY_MS = 3_600_000;
/** Kinds queued to be made. Others are requested again by their next boot. */
const MAX_WANTED = 8;

export interface TemplatesOptions
  extends Pick<MakeTemplateOptions, 'qemu_binary' | 'qemu_img_binary' | 'run_as' | 'jail'> {
  /** False: templates are neither made nor used. */
  readonly enabled: boolean;
  readonly templates_dir: string;
  readonly images_dir: string;
  readonly images: Pick<ImageKeeper, 'forDisk'>;
  readonly accel: Accelerator;
  readonly network: VmNetwork['kind'];
  readonly boots: BootSlots;
  readonly log: Log;
}

export interface WantedTemplate {
  readonly image: string;
  readonly image_version: string;
  readonly cpus: number;
  readonly memory_mib: number;
}

export class Templates {
  readonly #options: TemplatesOptions;
  readonly #wanted = new Map<string, WantedTemplate>();
  readonly #rejections = new Map<string, number>();
  /** Verified files: template key → file identity. */
  readonly #verified = new Map<string, string>();
  readonly #changed = new Signal();

  constructor(options: TemplatesOptions) {
    this.#options = options;
  }

  /** The template for a machine of that shape; null: it must boot. */
  async find(shape: Omit<Shape, 'accel' | 'network'>): Promise<Template | null> {
    const { enabled, templates_dir, accel, network } = this.#options;
    if (!enabled) return null;
    const key = templateKey({ ...shape, accel, network });
    if (this.#isGivenUp(key)) return null;
    const template = await findTemplate(templates_dir, key);
    if (template) await noteUse(template);
    return template;
  }

  /**
   * Opens its memory for QEMU. The guest may run once `verified` has resolved. The caller closes the file after that.
   * @throws when the template no longer exists
   */
  async open(template: Template): Promise<{ readonly file: FileHandle; readonly verified: Promise<void> }> {
    const file = await openMemory(template);
    const verified = this.#verify(file, template);
    // The caller may await it later.
    verified.catch(() => undefined);
    return { file, verified };
  }

  async #verify(file: FileHandle, template: Template): Promise<void> {
    const identity = await fileIdentity(file);
    if (this.#verified.get(template.key) === identity) return;
    await verifyMemory(file, template);
    this.#verified.set(template.key, identity);
  }

  /** Records that a machine did not come up from it, although the same disk boots without it. */
  async reject({ key }: Pick<Template, 'key'>): Promise<void> {
    this.#rejections.set(key, (this.#rejections.get(key) ?? 0) + 1);
    await removeTemplate(this.#options.templates_dir, key);
  }

  /** Requests a template for a kind that had to boot. */
  want(wanted: WantedTemplate): void {
    if (!this.#options.enabled || this.#wanted.size >= MAX_WANTED) return;
    this.#wanted.set(JSON.stringify(wanted), wanted);
    this.#changed.notify();
  }

  /** Makes requested templates until `signal` aborts. */
  async run(signal: AbortSignal): Promise<void> {
    const { templates_dir, log } = this.#options;
    await clearAway(templates_dir).catch((error: unknown) =>
      log.warn({ err: error }, 'an unfinished template could not be removed'),
    );
    while (!signal.aborted) {
      const since = this.#changed.count;
      try {
        for (const [name, wanted] of this.#wanted) {
          this.#wanted.delete(name);
          await this.#make(wanted, signal);
        }
        await this.#bound();
      } catch (error) {
        if (!signal.aborted) log.warn({ err: error }, 'a template was not made');
      }
      const over = AbortSignal.any([signal, AbortSignal.timeout(LOOK_EVERY_MS)]);
      if (this.#wanted.size === 0) await this.#changed.wait({ since, signal: over });
    }
  }

  async #make(
    { image: id, image_version, cpus, memory_mib }: WantedTemplate,
    signal: AbortSignal,
  ): Promise<void> {
    const { templates_dir, qemu_binary, qemu_img_binary, run_as, jail, accel, network, images, boots, log } =
      this.#options;
    const image = await images.forDisk(id, image_version, signal);
    const shape: Shape = { image, cpus, memory_mib, accel, network };
    const key = templateKey(shape);
    if (this.#isGivenUp(key) || (await findTemplate(templates_dir, key))) return;
    let release = boots.takeIdle();
    while (!release && (await pause(IDLE_TRY_MS, signal))) release = boots.takeIdle();
    if (!release) return;
    const began = performance.now();
    try {
      await makeTemplate({ templates_dir, shape, qemu_binary, qemu_img_binary, run_as, jail, signal });
      // Here no start waits for the verification.
      const template = await findTemplate(templates_dir, key);
      if (template) await this.#look(template);
      const ms = Math.round(performance.now() - began);
      log.info({ template: key, image: id, cpus, memory_mib, ms }, 'a template was made');
    } catch (error) {
      if (signal.aborted) return;
      this.#rejections.set(key, REJECTIONS);
      log.warn(
        { template: key, reason: messageOf(error) },
        'a template cannot be made; VMs of this kind boot without one',
      );
    } finally {
      release();
    }
  }

  async #look(template: Template): Promise<void> {
    const { file, verified } = await this.open(template);
    await verified.finally(() => file.close());
  }

  #isGivenUp(key: string): boolean {
    return (this.#rejections.get(key) ?? 0) >= REJECTIONS;
  }

  async #bound(): Promise<void> {
    const { templates_dir, images_dir } = this.#options;
    const here = new Set((await listHostImages(images_dir)).map(({ version }) => version));
    await boundTemplates(templates_dir, (version) => here.has(version));
  }
}

const ASLEEP_MS = 300_000;
const EXIT_MS = 5_000;
/** Free disk space needed besides the memory. */
const SPARE_BYTES = 1024 ** 3;
const LOWEST_PRIORITY = 19;

export interface MakeTemplateOptions {
  readonly templates_dir: string;
  readonly shape: Shape;
  readonly qemu_binary: string;
  readonly qemu_img_binary: string;
  /** null: as the agent's user. */
  readonly run_as: { readonly uid: number; readonly gid: number } | null;
  /** null: no jail. */
  readonly jail: Jail | null;
  readonly signal: AbortSignal;
}

/**
 * Makes a template: boots the image with `berth.template=1`, waits until its init sleeps, and saves its memory.
 *
 * Invariants:
 * - the machine belongs to no instance: it has a new id, an empty disk that must stay empty, and no network;
 * - all its files are in `templates/making`: after a crash the next agent ends a QEMU found there and removes the folder;
 * - it runs at the lowest priority, because no user waits for it.
 *
 * Resolves when the template exists. When it throws, nothing is left of it.
 */
async function makeTemplate(options: MakeTemplateOptions): Promise<void> {
  const { templates_dir, shape, run_as, signal } = options;
  const work_dir = makingFolder(templates_dir);
  const runtime_dir = join(work_dir, 'run');
  await clearAway(templates_dir);
  await ensureRoom(templates_dir, 'a template', maxStreamBytes(shape.memory_mib) + SPARE_BYTES);
  await mkdir(work_dir);
  // mkdir's mode is subject to the umask.
  await chmod(work_dir, 0o711);
  let vm: LaunchedVm | undefined;
  try {
    if (run_as) prepareRuntimeDir(runtime_dir, run_as.uid, run_as.gid);
    else await mkdir(runtime_dir, { mode: 0o700 });
    vm = await launch(options, work_dir, runtime_dir);
    lowerPriority(vm.identity);
    await untilAsleep(vm, vmSockets(runtime_dir).agent, signal);
    await vm.qmp.execute('stop', undefined);
    await save(options, vm.qmp, runtime_dir);
  } finally {
    vm?.qmp.close();
    if (vm) await end(vm.identity);
    await rm(work_dir, { recursive: true, force: true });
  }
}

/** Ends the QEMU and removes the files of a template that an earlier agent was making. */
async function clearAway(templates_dir: string): Promise<void> {
  for (const { identity } of findOrphans(templates_dir)) await end(identity);
  await rm(makingFolder(templates_dir), { recursive: true, force: true });
}

async function end(identity: ProcessIdentity): Promise<void> {
  killProcess(identity, 'SIGKILL');
  await waitForExit(identity, EXIT_MS);
}

async function launch(
  { shape, qemu_binary, qemu_img_binary, run_as, jail }: MakeTemplateOptions,
  work_dir: string,
  runtime_dir: string,
): Promise<LaunchedVm> {
  const { image, cpus, memory_mib, accel, network } = shape;
  const instance_id = newId('inst');
  const { overlay } = await createOverlay({
    folder: work_dir,
    instance_id,
    size_bytes: image.size_bytes,
    qemu_img_binary,
    ...(run_as ? { owner: run_as } : {}),
  });
  const machine: VmSpec = {
    ...{ instance_id, vm_id: newId('vm'), cpus, memory_mib, accel, hostname: 'template' },
    ...{ kernel_path: image.kernel_path, initrd_path: image.initrd_path, base_path: image.rootfs_path },
    ...{ overlay_path: overlay, runtime_dir },
    // Its state must be that of a machine with this network: QEMU's user network has some of its own.
    network:
      network === 'tap'
        ? { kind: 'none' }
        : { kind: 'user', ssh_forward_port: await freeLoopbackPort(), restricted: true },
    kernel_parameters: ['berth.template=1'],
  };
  return launchVm({
    qemu_binary,
    arguments: qemuArguments(machine),
    runtime_dir,
    log_path: join(work_dir, 'qemu.log'),
    ...(run_as ? { run_as } : {}),
    ...(run_as && jail ? { jail: { jail, files: filesOfVm(machine) } } : {}),
  });
}

/** All of its threads exist before its guest runs. */
function lowerPriority({ pid }: ProcessIdentity): void {
  try {
    for (const thread of readdirSync(`/proc/${pid}/task`)) setPriority(Number(thread), LOWEST_PRIORITY);
  } catch {
    // It has ended, which is detected elsewhere.
  }
}

async function untilAsleep(vm: LaunchedVm, agent_socket: string, signal: AbortSignal): Promise<void> {
  const deadline = performance.now() + ASLEEP_MS;
  const channel = await openAgentChannel(agent_socket, deadline);
  const given_up = () => channel.destroy(new Error('given up'));
  signal.addEventListener('abort', given_up, { once: true });
  try {
    signal.throwIfAborted();
    await vm.qmp.execute('cont', undefined);
    while (!isAsleep(await channel.nextLine(deadline, 'booting a template')));
  } finally {
    signal.removeEventListener('abort', given_up);
    channel.destroy(new Error('it sleeps'));
  }
}

async function save(
  { templates_dir, shape, run_as, signal }: MakeTemplateOptions,
  qmp: QmpClient,
  runtime_dir: string,
): Promise<void> {
  const { cpus, memory_mib, accel, image, network } = shape;
  const traits = {
    ...hardwareTraits({ cpus, memory_mib, accel, image_version: image.version, network }),
    qemu: await qemuVersion(qmp),
  };
  const outlet = { path: join(runtime_dir, 'memory.sock'), owner: run_as, signal };
  const { taken, whole } = await saveStream(qmp, outlet, (stream) =>
    writeMemory(templates_dir, stream, maxStreamBytes(memory_mib)),
  );
  if (!whole) throw new Error('QEMU did not send all of its memory');
  const written = (await qmp.execute('query-blockstats', {})).some(
    ({ stats }) => stats.wr_operations + stats.unmap_operations > 0,
  );
  if (written) throw new Error('the guest has written to its disk');
  await publishTemplate(templates_dir, templateKey(shape), { traits, ...taken });
}
