/**
 * Unpacks an earlier commit of this repository into a folder of its own, for tests of upgrades. The folder has the
 * commit's packages, and the guest images of this checkout.
 */
import { execFile, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';

const PROJECT = join(import.meta.dirname, '..', '..');

export class Checkout {
  readonly folder: string;
  readonly #is_temporary: boolean;

  private constructor(folder: string, is_temporary: boolean) {
    this.folder = folder;
    this.#is_temporary = is_temporary;
  }

  /** This one. */
  static readonly PRESENT = new Checkout(PROJECT, false);

  /** Whether this repository has the commit: a shallow clone may not. */
  static has(commit: string): boolean {
    try {
      execFileSync('git', ['cat-file', '-e', `${commit}^{commit}`], { cwd: PROJECT, stdio: 'ignore' });
      return true;
    } catch {
      return false;
    }
  }

  static async of(commit: string): Promise<Checkout> {
    const checkout = new Checkout(mkdtempSync(join(tmpdir(), 'berth-commit-')), true);
    const { folder } = checkout;
    const archive = spawn('git', ['archive', commit], { cwd: PROJECT, stdio: ['ignore', 'pipe', 'inherit'] });
    const unpack = spawn('tar', ['-x', '-C', folder], { stdio: [archive.stdout, 'ignore', 'inherit'] });
    const [code] = (await once(unpack, 'exit')) as [number | null];
    if (code !== 0) throw new Error(`${commit} cannot be unpacked`);
    const changed = execFileSync('git', ['diff', '--name-only', commit, 'HEAD', '--', 'package-lock.json'], {
      cwd: PROJECT,
      encoding: 'utf8',
    });
    if (changed === '') symlinkSync(join(PROJECT, 'node_modules'), join(folder, 'node_modules'));
    else
      await promisify(execFile)('npm', ['ci', '--prefer-offline', '--no-audit', '--no-fund'], {
        cwd: folder,
      });
    mkdirSync(join(folder, '.cache'));
    symlinkSync(join(PROJECT, '.cache', 'images'), join(folder, '.cache', 'images'));
    return checkout;
  }

  /** The program of the roles. */
  get main(): string {
    return join(this.folder, 'src', 'main.ts');
  }

  /** A command of `berth`, with these settings. @returns what it prints */
  async berth(settings: Readonly<Record<string, string>>, ...words: string[]): Promise<string> {
    const program = join(this.folder, 'src', 'cli', 'main.ts');
    const options = { env: { PATH: process.env['PATH'] ?? '', ...settings }, cwd: tmpdir() };
    return (await promisify(execFile)(process.execPath, [program, ...words], options)).stdout;
  }

  dispose(): void {
    if (this.#is_temporary) rmSync(this.folder, { recursive: true, force: true, maxRetries: 5 });
  }
}
