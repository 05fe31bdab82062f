/** Runs `bin/berth` as a person does: in a process with its own home folder, and with a terminal only on request. */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after } from 'node:test';

export const BERTH = join(import.meta.dirname, '..', '..', 'bin', 'berth');

export interface Ran {
  readonly code: number | null;
  readonly out: string;
  readonly err: string;
}

export interface Running {
  readonly child: ChildProcess;
  /** The output so far. */
  readonly out: () => string;
  readonly err: () => string;
  readonly ended: Promise<Ran>;
}

export class Cli {
  readonly home: string;
  readonly env: Record<string, string>;
  readonly #children = new Set<ChildProcess>();

  constructor(env: Record<string, string> = {}) {
    this.home = mkdtempSync(join(tmpdir(), 'berth-home-'));
    after(() => {
      for (const child of this.#children) child.kill('SIGKILL');
      rmSync(this.home, { recursive: true, force: true });
    });
    this.env = { PATH: process.env['PATH'] ?? '', HOME: this.home, ...env };
  }

  start(args: readonly string[], input: string | null = ''): Running {
    return this.spawn(BERTH, args, input);
  }

  /** Runs on a new terminal (util-linux's script), which merges stdout and stderr. */
  onTerminal(args: readonly string[]): Running {
    const command = [BERTH, ...args].map((word) => `'${word}'`).join(' ');
    return this.spawn('script', ['-qefc', command, '/dev/null'], null);
  }

  private spawn(program: string, args: readonly string[], input: string | null): Running {
    const child = spawn(program, args, { env: this.env, cwd: this.home, stdio: ['pipe', 'pipe', 'pipe'] });
    this.#children.add(child);
    child.once('close', () => this.#children.delete(child));
    let out = '';
    let err = '';
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      out += text;
    });
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      err += text;
    });
    child.stdin.on('error', () => undefined);
    if (input !== null) child.stdin.end(input);
    const ended = new Promise<Ran>((resolve, reject) => {
      child.once('error', reject);
      child.once('close', (code) => resolve({ code, out, err }));
    });
    return { child, out: () => out, err: () => err, ended };
  }

  run(args: readonly string[], input = ''): Promise<Ran> {
    return this.start(args, input).ended;
  }

  /** Returns stdout. Fails unless the exit code is 0. */
  async done(...args: string[]): Promise<string> {
    const { code, out, err } = await this.run(args);
    assert.equal(code, 0, `berth ${args.join(' ')}: ${err}${out}`);
    return out;
  }

  async json<T>(...args: string[]): Promise<T> {
    return JSON.parse(await this.done(...args, '--json')) as T;
  }

  /** Returns stderr. Fails unless the exit code is `code`. */
  async fails(code: number, ...args: string[]): Promise<string> {
    const ran = await this.run(args);
    assert.equal(ran.code, code, `berth ${args.join(' ')}: ${ran.err}${ran.out}`);
    assert.ok(!ran.err.includes('    at '), ran.err);
    return ran.err;
  }
}
