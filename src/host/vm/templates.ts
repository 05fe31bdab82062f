/**
 * The templates of this host. A starting VM looks for one. After a boot that found none, one is made in the background, one
 * at a time. A start never fails or waits because of templates: without one, the VM boots.
 *
 * If a template cannot be made, or was rejected REJECTIONS times, its kind has none until the agent restarts.
 */
import type { FileHandle } from 'node:fs/promises';
import { Signal } from '../../shared/concurrency.ts';
import { messageOf } from '../../shared/errors.ts';
import type { Log } from '../../shared/log.ts';
import { pause } from '../../shared/retry.ts';
import type { BootSlots } from '../boot-slots.ts';
import { listHostImages } from '../images/host-images.ts';
import type { ImageKeeper } from '../images/image-keeper.ts';
import type { VmNetwork } from '../network/addresses.ts';
import type { Accelerator } from '../qemu/vm-spec.ts';
import { clearAway, type MakeOptions, makeTemplate } from './make-template.ts';
import {
  boundTemplates,
  findTemplate,
  identityOf,
  noteUse,
  openMemory,
  removeTemplate,
  type Shape,
  type Template,
  templateKey,
  verifyMemory,
} from './template-files.ts';

const REJECTIONS = 2;
const IDLE_TRY_MS = 500;
const LOOK_EVERY_MS = 3_600_000;
/** Kinds queued to be made. Others are requested again by their next boot. */
const MAX_WANTED = 8;

export interface TemplatesOptions
  extends Pick<MakeOptions, 'qemu_binary' | 'qemu_img_binary' | 'run_as' | 'jail'> {
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

export interface Wanted {
  readonly image: string;
  readonly image_version: string;
  readonly cpus: number;
  readonly memory_mib: number;
}

export class Templates {
  readonly #options: TemplatesOptions;
  readonly #wanted = new Map<string, Wanted>();
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
    const identity = await identityOf(file);
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
  want(wanted: Wanted): void {
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

  async #make({ image: id, image_version, cpus, memory_mib }: Wanted, signal: AbortSignal): Promise<void> {
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
