/** A folder on a small file system in memory whose size changes while it is in use. Needs root. */
import { execFileSync } from 'node:child_process';
import { mkdirSync, statfsSync, writeFileSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';

const FILLER = 'filler.of-a-test';

export class SmallDisk {
  readonly folder: string;

  constructor(folder: string, size_mib: number, mode: number) {
    this.folder = folder;
    mkdirSync(folder, { recursive: true });
    const options = `size=${size_mib}m,mode=${mode.toString(8)}`;
    execFileSync('mount', ['-t', 'tmpfs', '-o', options, 'tmpfs', folder]);
  }

  get free_bytes(): number {
    const { bavail, bsize } = statfsSync(this.folder);
    return bavail * bsize;
  }

  /** Fills the file system until only this much space is free. */
  fill(leave_bytes: number): void {
    const bytes = this.free_bytes - leave_bytes;
    if (bytes > 0) writeFileSync(join(this.folder, FILLER), Buffer.alloc(bytes));
  }

  async makeRoom(): Promise<void> {
    await rm(join(this.folder, FILLER), { force: true });
  }

  remount(options: string): void {
    execFileSync('mount', ['-o', `remount,${options}`, this.folder]);
  }

  unmount(): void {
    execFileSync('umount', ['--lazy', this.folder]);
  }
}
