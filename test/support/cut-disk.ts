/**
 * Mounts a folder on a disk whose power can be cut (`cut-disk.py`): ext4 on a loop device over one FUSE file. A cut may
 * lose, tear or reorder writes that were not synced, as on a real disk. It needs root, /dev/fuse, and Debian's
 * python3-fusepy.
 */
import assert from 'node:assert/strict';
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { until } from './waiting.ts';

const SERVER = join(import.meta.dirname, 'cut-disk.py');
const SIZE_BYTES = 16 * 2 ** 30;
const MOUNTED_MS = 20_000;
/** A disk without writes is cut after this time. */
const SILENCE_MS = 2_000;

/** The reason why disks cannot be cut here, for `skip`; false if they can. */
export const CANNOT_CUT_DISKS =
  process.getuid?.() === 0 && existsSync('/dev/fuse') && existsSync('/dev/loop-control')
    ? false
    : 'cutting the power of a disk takes root, /dev/fuse and loop devices';

export class CutDisk {
  readonly mount_point: string;
  readonly #folder: string;
  #server: ChildProcess | undefined;
  #loop: string | undefined;

  /** Mounts the disk on the existing folder `mount_point`. Synchronous, for `prepare` of an installation. */
  constructor(mount_point: string) {
    this.mount_point = mount_point;
    this.#folder = mkdtempSync(join(tmpdir(), 'bcut-'));
    mkdirSync(join(this.#folder, 'fuse'));
    writeFileSync(this.#path('durable'), '');
    truncateSync(this.#path('durable'), SIZE_BYTES);
    const loop = this.#attach();
    run('mkfs.ext4', ['-q', '-E', 'lazy_itable_init=0,lazy_journal_init=0,nodiscard', loop]);
    run('mount', [loop, mount_point]);
  }

  /** Cuts the power; later writes fail. Returns a report about the unsynced writes. */
  async cut(seed: number): Promise<string> {
    const ask = () => writeFileSync(join(this.#folder, 'fuse', 'cut'), String(seed));
    ask();
    const report = this.#path('cut');
    const deadline = Date.now() + SILENCE_MS;
    while (!existsSync(report) && Date.now() < deadline) await sleep(20);
    if (!existsSync(report)) ask();
    return until('the power is cut', () => existsSync(report) && readFileSync(report, 'utf8').trim());
  }

  /** Restores the power and mounts the disk with its durable content. No process may still use it. */
  comeBack(): void {
    this.#release();
    for (const name of ['cut', 'current']) rmSync(this.#path(name), { force: true });
    const loop = this.#attach();
    run('mount', [loop, this.mount_point]);
  }

  /** Unmounts the disk, so that the folder with the mount point can be removed. */
  unmount(): void {
    tryRun('umount', ['-l', this.mount_point]);
  }

  dispose(): void {
    this.#release();
    rmSync(this.#folder, { recursive: true, force: true });
  }

  #path(name: string): string {
    return join(this.#folder, name);
  }

  #attach(): string {
    run('cp', ['--sparse=always', this.#path('durable'), this.#path('current')]);
    this.#server = spawn('/usr/bin/python3', [SERVER, this.#folder], {
      stdio: ['ignore', 'ignore', 'inherit'],
    });
    const disk = join(this.#folder, 'fuse', 'disk');
    const deadline = Date.now() + MOUNTED_MS;
    while (!existsSync(disk)) {
      assert(Date.now() < deadline, 'the FUSE file system is mounted');
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 20);
    }
    this.#loop = run('losetup', ['-f', '--show', disk]);
    return this.#loop;
  }

  /**
   * Whoever else holds the file system keeps it: another process may have copied this mount into a namespace of its own. It holds
   * only errors then, because the disk below is gone, and the next one is a disk of its own.
   */
  #release(): void {
    this.unmount();
    if (this.#loop !== undefined) tryRun('losetup', ['-d', this.#loop]);
    tryRun('umount', ['-l', join(this.#folder, 'fuse')]);
    this.#server?.kill('SIGKILL');
    this.#server = undefined;
    this.#loop = undefined;
  }
}

function run(program: string, args: readonly string[]): string {
  return execFileSync(program, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] }).trim();
}

function tryRun(program: string, args: readonly string[]): void {
  try {
    run(program, args);
  } catch {
    // It may not have been mounted or attached.
  }
}
