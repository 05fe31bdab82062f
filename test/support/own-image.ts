/** Creates a custom image that random rounds interrupt, and checks that afterwards the image is complete or absent. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { GuestInstance } from './guest-instance.ts';
import type { Installation } from './installation.ts';
import { untilWorks } from './waiting.ts';

const NAME = 'tools';
const PATIENCE = { timeout_ms: 600_000, every_ms: 500 };

export class OwnImage {
  readonly #berth: Installation;
  readonly #archive: string;
  #added = false;

  /** `scratch_dir` is not on the disk whose power is cut. */
  constructor(berth: Installation, scratch_dir: string) {
    this.#berth = berth;
    this.#archive = join(scratch_dir, 'image.tar');
  }

  /** Makes the archive for the images, once, from the built-in image's files. */
  async prepare(): Promise<void> {
    if (existsSync(this.#archive)) return;
    const folder = mkdtempSync(join(tmpdir(), 'bcut-image-'));
    try {
      const rootfs = join(this.#berth.paths.debian_12, 'current', 'rootfs.img');
      execFileSync('debugfs', ['-R', `rdump / ${folder}`, rootfs], { stdio: 'ignore' });
      for (const ours of [
        'usr/lib/berth',
        'usr/lib/modules',
        'etc/ssh/sshd_config.d/berth.conf',
        'etc/inittab',
      ])
        rmSync(join(folder, ours), { recursive: true });
      execFileSync('tar', ['-C', folder, '-cf', this.#archive, '.']);
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  }

  /** Creates the image; may be interrupted at any point. */
  async add(): Promise<void> {
    this.#added = true;
    await this.#berth.cli('image', 'add', NAME, this.#archive);
  }

  /** Checks that a listed image boots, and that the image can be created again or removed. */
  async verify(): Promise<void> {
    if (!this.#added) return;
    if (!(await this.#isListed())) {
      const again = await this.#berth.cli('image', 'add', NAME, this.#archive);
      assert.equal(again.code, 0, again.err);
      assert(await this.#isListed(), 'an image that was added is listed');
    }
    const guest = await GuestInstance.running(this.#berth, `made-of-${NAME}`, { image: NAME });
    assert.equal(await guest.shAgain('hostname'), `made-of-${NAME}`);
    await this.#berth.client.expect(202, 'DELETE', guest.path);
    await guest.gone();
    await untilWorks('the image is removed', () => this.#remove(), PATIENCE);
    this.#added = false;
  }

  async #isListed(): Promise<boolean> {
    const { data } = await this.#berth.client.expect<{ data: { id: string }[] }>(200, 'GET', '/v1/images');
    return data.some(({ id }) => id === NAME);
  }

  async #remove(): Promise<void> {
    const removed = await this.#berth.cli('image', 'rm', NAME);
    assert.equal(removed.code, 0, removed.err);
  }
}
