/**
 * Runs random rounds that end in a disaster (`disasters.ts`). Each round requests some work, strikes at a random
 * moment, restarts everything, and compares the disk with the promises of the guest's FLUSHes and of the receipts:
 *
 * - Data that a receipt or a stop covers is on the disk: in the overlay, and in the exported generation.
 * - Data that the guest flushed is on the disk, unless the start says `recovered`.
 * - A guest that keeps running sees no error.
 * - The disk holds nothing that was never written.
 *
 * The seed determines the choices; the machine determines the timing.
 */
import assert from 'node:assert/strict';
import { closeSync, mkdtempSync, openSync, readSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Disaster } from './disasters.ts';
import type { GuestInstance } from './guest-instance.ts';
import type { Installation } from './installation.ts';
import { OwnImage } from './own-image.ts';
import { type Allowed, type BlockContent, readRegion, verifyRegion } from './region-oracle.ts';
import { RegionWriter } from './region-writer.ts';
import type { ReceiptBody } from './rest-client.ts';
import { seededRandom } from './seeded-random.ts';
import { until, untilWorks } from './waiting.ts';

const WORK = [
  ...['flush', 'flush', 'flush', 'silent flush', 'silent flush', 'silent flush'],
  ...['nothing', 'start', 'start', 'stop', 'force stop', 'restart', 'suspend', 'resume', 'lazy start'],
  ...['fork', 'compact', 'backup', 'template', 'image', 'killed and stopped', 'killed and started'],
] as const;
/** Percentages of FLUSHes and of discards. */
const WRITERS = [
  { flush: 0, discard: 0 },
  { flush: 0, discard: 10 },
  { flush: 5, discard: 5 },
  { flush: 30, discard: 5 },
] as const;
const LONGEST_MS = 4_000;
/** Making an image takes long: it is unpacked, written, booted and stored in sequence. */
const LONGEST_IMAGE_MS = 25_000;
const PATIENCE = { timeout_ms: 600_000, every_ms: 200 };

export interface RoundsTotal {
  rounds: number;
  receipts: number;
  exports: number;
  recovered: number;
}

interface Receipt {
  readonly generation: number;
  readonly allowed: Allowed;
}

export class CrashRounds {
  readonly total: RoundsTotal = { rounds: 0, receipts: 0, exports: 0, recovered: 0 };
  readonly #berth: Installation;
  readonly #guest: GuestInstance;
  readonly #writer: RegionWriter;
  readonly #disasters: readonly Disaster[];
  readonly #image: OwnImage;
  readonly #random: () => number;
  #seed: number;
  /** The newest generation. */
  #receipt: Receipt | null = null;
  #killed = false;

  private constructor(
    berth: Installation,
    disasters: readonly Disaster[],
    writer: RegionWriter,
    image: OwnImage,
    seed: number,
  ) {
    this.#berth = berth;
    this.#disasters = disasters;
    this.#image = image;
    this.#writer = writer;
    this.#guest = writer.guest;
    this.#random = seededRandom(seed);
    this.#seed = seed;
  }

  static async begin(
    berth: Installation,
    disasters: readonly Disaster[],
    guest: GuestInstance,
    { seed, scratch_dir }: { readonly seed: number; readonly scratch_dir: string },
  ): Promise<CrashRounds> {
    const writer = await RegionWriter.install(guest);
    const image = new OwnImage(berth, scratch_dir);
    const rounds = new CrashRounds(berth, disasters, writer, image, seed);
    writer.oracle.begin(await writer.read());
    await rounds.#flush();
    return rounds;
  }

  /** Runs one round and describes it. */
  async once(): Promise<string> {
    const work = this.#pick(WORK);
    const writer = this.#pick(WRITERS);
    const longest_ms = work === 'image' ? LONGEST_IMAGE_MS : LONGEST_MS;
    const after_ms = Math.floor(this.#random() ** 2 * longest_ms);
    const disaster = this.#pick(this.#disasters);
    const what = `${work}, a writer with ${writer.flush} % FLUSHes and ${writer.discard} % discards, ${disaster.name} ${after_ms} ms later`;
    try {
      const { boot } = await this.#guest.vm();
      await this.#writer.start(this.#seed++, writer);
      await this.#written(10 + Math.floor(this.#random() * 100));
      await this.#prepare(work);
      // The request may fail with the process that is killed. `#verify` checks what the guest saw.
      const asked = this.#ask(work).catch(() => undefined);
      await sleep(after_ms);
      const report = await disaster.strike(this.#random);
      await asked;
      await this.#writer.stop();
      await disaster.recover();
      const state = await this.#verify(boot);
      this.total.rounds += 1;
      return `${what} (${report}); ${state}`;
    } catch (error) {
      throw new Error(`after: ${what}`, { cause: error });
    }
  }

  #pick<T>(from: readonly T[]): T {
    return from[Math.floor(this.#random() * from.length)] ?? assert.fail('there is a choice');
  }

  /** Waits until the writer has done this many operations. Its numbers begin 1,000 after the last issued one. */
  async #written(operations: number): Promise<void> {
    const { done } = this.#writer.oracle;
    await until('the guest writes', () => this.#writer.listen().done >= done + 1_000 + operations, PATIENCE);
  }

  /** Waits for conditions that must hold before the work begins. */
  async #prepare(work: (typeof WORK)[number]): Promise<void> {
    if (work === 'silent flush') await this.#guest.sh('kill -STOP $(pidof qemu-ga)');
    if (work === 'start' || work === 'lazy start' || work === 'template') {
      await this.#stop(false);
      if (work === 'lazy start') await this.#berth.removeOverlays(this.#guest.id);
      // A boot without a template makes one in the background.
      if (work === 'template') rmSync(this.#berth.paths.templates, { recursive: true, force: true });
    }
    if (work === 'image') await this.#image.prepare();
    if (work === 'resume') {
      await this.#writer.stop();
      await this.#guest.suspend();
      this.#covered(this.#writer.oracle.done, (await this.#guest.vm()).disk.generation);
    }
    if (work.startsWith('killed')) await this.#kill();
  }

  async #ask(work: (typeof WORK)[number]): Promise<void> {
    const guest = this.#guest;
    const { client } = this.#berth;
    if (work.endsWith('flush')) return this.#flush();
    if (work === 'stop' || work === 'killed and stopped') return this.#stop(false);
    if (work === 'force stop') return this.#stop(true);
    if (work === 'suspend') await client.request('POST', `${guest.path}/vm/suspend`);
    if (work === 'restart') await client.request('POST', `${guest.path}/vm/restart`);
    if (work === 'backup') await this.#backup();
    if (work === 'image') await this.#image.add();
    if (work === 'fork') {
      const name = `fork-${this.#seed}`;
      const { body } = await client.request<{ id: string }>('POST', `${guest.path}/fork`, { name });
      await client.request('POST', `/v1/instances/${body.id}/vm`);
      await sleep(1_000);
      await client.request('DELETE', `/v1/instances/${body.id}`);
    }
    if (work === 'compact') {
      await this.#flush();
      await this.#flush();
    }
    if (['start', 'lazy start', 'template', 'resume', 'killed and started'].includes(work)) {
      await client.request('POST', `${guest.path}/vm`);
      await guest.reached('running');
      await this.#flush();
    }
  }

  /** From here until the next check, only the guest's flushed writes are promised. */
  async #kill(): Promise<void> {
    const { killProcess } = await import('../../src/host/qemu/qemu-process.ts');
    killProcess(this.#guest.qemu, 'SIGKILL');
    await this.#guest.becomes('failed', ({ state }) => state === 'failed');
    await this.#writer.stop();
    this.#killed = true;
  }

  /** A stop covers every operation that was acknowledged before the request. */
  async #stop(force: boolean): Promise<void> {
    const { done } = this.#writer.listen();
    const is_dead = (await this.#guest.vm()).state === 'failed';
    const { disk } = await this.#guest.stop({ force });
    // A killed guest keeps only its flushed writes.
    if (!is_dead) this.#covered(done, disk.generation);
  }

  /** A flush of a VM whose QEMU is dead saves its overlay, which has the writes that the guest flushed. */
  async #flush(): Promise<void> {
    const { done, flushed } = this.#writer.listen();
    const is_dead = this.#killed || !(await this.#qemuIsAlive());
    const { status, body } = await this.#berth.client.request<ReceiptBody>(
      'POST',
      `${this.#guest.path}/vm/flush`,
    );
    if (status !== 200) return;
    this.total.receipts += 1;
    this.#covered(is_dead ? flushed : done, body.generation);
  }

  async #qemuIsAlive(): Promise<boolean> {
    const { isProcessAlive } = await import('../../src/host/qemu/qemu-process.ts');
    try {
      return isProcessAlive(this.#guest.qemu);
    } catch {
      // A VM without a record has no QEMU.
      return false;
    }
  }

  #covered(survived: number, generation: number): void {
    this.#receipt = { generation, allowed: this.#writer.listen().allowed(survived) };
  }

  /** Its folder is not on the disk whose power is cut. */
  async #backup(): Promise<void> {
    const folder = mkdtempSync(join(tmpdir(), 'bcut-backup-'));
    try {
      await this.#berth.cli('backup', join(folder, 'backup'));
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  }

  /** After the recovery: compares the disk with the promises. */
  async #verify(boot_before: number): Promise<string> {
    const guest = this.#guest;
    if (this.#receipt) await this.#verifyGeneration(this.#receipt);
    await untilWorks('it runs', () => this.#running(), PATIENCE);
    await guest.shAgain('true');
    const { reason, boot } = await guest.vm();
    const content = await this.#writer.read();
    const { oracle } = this.#writer;
    const is_back = reason?.code === 'recovered';
    if (is_back) this.total.recovered += 1;
    else if (boot > boot_before)
      verifyRegion(content, oracle.allowed(oracle.flushed), 'what the guest has flushed');
    else verifyRegion(content, oracle.allowed(oracle.done), 'what the still running guest has written');
    if (this.#receipt) verifyRegion(content, this.#onwards(this.#receipt.allowed), 'what the receipt covers');
    oracle.begin(content);
    this.#killed = false;
    await this.#image.verify();
    // A new generation must hold exactly the content that was just read.
    const receipt = await untilWorks('a flush', () => guest.flush(), PATIENCE);
    this.total.receipts += 1;
    this.#covered(oracle.done, receipt.generation);
    await this.#verifyGeneration({
      generation: receipt.generation,
      allowed: exactly(content, oracle.issued),
    });
    return `${reason?.code}, generation ${receipt.generation}, ${oracle.issued} operations`;
  }

  /** The disk may also hold later operations. */
  #onwards(covered: Allowed): Allowed {
    const now = this.#writer.oracle.allowed(0);
    return {
      heard: now.heard,
      values: covered.values.map((values, block) => [...new Set([...values, ...(now.values[block] ?? [])])]),
    };
  }

  async #verifyGeneration({ generation, allowed }: Receipt): Promise<void> {
    const folder = mkdtempSync(join(tmpdir(), 'bcut-export-'));
    try {
      const file = join(folder, 'disk.raw');
      const made = await this.#berth.cli(
        'disk',
        'export',
        this.#guest.id,
        file,
        '--generation',
        String(generation),
      );
      assert.equal(made.code, 0, made.err);
      verifyRegion(this.#regionOf(file), allowed, `generation ${generation}`);
      this.total.exports += 1;
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  }

  #regionOf(file: string): BlockContent[] {
    const bytes = Buffer.alloc(this.#writer.bytes);
    const handle = openSync(file, 'r');
    try {
      assert.equal(readSync(handle, bytes, 0, bytes.length, this.#writer.offset_bytes), bytes.length);
    } finally {
      closeSync(handle);
    }
    return readRegion(bytes);
  }

  async #running(): Promise<void> {
    const vm = await this.#guest.vm();
    if (vm.state === 'running') return;
    if (['stopped', 'suspended', 'failed'].includes(vm.state))
      await this.#berth.client.request('POST', `${this.#guest.path}/vm`);
    throw new Error(`it is ${vm.state}: ${JSON.stringify(vm.reason)}`);
  }
}

function exactly(content: readonly BlockContent[], heard: number): Allowed {
  return { heard, values: content.map((found) => (typeof found === 'number' ? [found] : found)) };
}
