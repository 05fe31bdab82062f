/** Starts the E2B adapter in a process that a test may kill. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { ownPort } from './own-ports.ts';

const PROGRAM = join(import.meta.dirname, '..', '..', 'adapters', 'e2b', 'src', 'main.ts');

export class E2bAdapter {
  readonly port: number;
  readonly #args: readonly string[];
  readonly #env: Record<string, string>;
  #child: ChildProcess | undefined;
  /** All that it has printed. */
  printed = '';

  private constructor(port: number, berth_url: string, key_file: string, api_key: string) {
    this.port = port;
    this.#args = [PROGRAM, '--listen', `127.0.0.1:${port}`, '--key-file', key_file];
    this.#env = { BERTH_URL: berth_url, BERTH_API_KEY: api_key };
  }

  /** @param api_key its own */
  static async start(berth_url: string, key_file: string, api_key: string): Promise<E2bAdapter> {
    const adapter = new E2bAdapter(await ownPort(), berth_url, key_file, api_key);
    await adapter.start();
    return adapter;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  async start(): Promise<void> {
    const child = spawn(process.execPath, this.#args, {
      env: this.#env,
      stdio: ['ignore', 'inherit', 'pipe'],
    });
    this.#child = child;
    const ended = once(child, 'exit').then(([code]) => Promise.reject(new Error(`it ended with ${code}`)));
    ended.catch(() => undefined);
    const lines = createInterface(child.stderr);
    lines.on('line', (line) => {
      this.printed += `${line}\n`;
    });
    await Promise.race([once(lines, 'line'), ended]);
  }

  async kill(): Promise<void> {
    const child = this.#child;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    child.kill('SIGKILL');
    await once(child, 'exit');
  }
}
