/**
 * Runs scripts for the tests of the examples, in a shell with a folder of its own. The shell has `berth` on its PATH,
 * with an API key as its login.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, dirname, join } from 'node:path';
import { after } from 'node:test';
import { BERTH, type Ran } from './cli.ts';
import type { Installation } from './installation.ts';

const EXAMPLES = join(import.meta.dirname, '..', '..', 'examples');

export class ExampleShell {
  readonly folder = mkdtempSync(join(tmpdir(), 'berth-example-'));
  readonly env: Record<string, string>;
  /** The API key that the shell's `berth` uses. */
  key_token = '';

  /** To be made where `after` means the end of the tests: in a file or in `describe`. */
  constructor() {
    after(() => rmSync(this.folder, { recursive: true, force: true }));
    this.env = {
      PATH: [dirname(BERTH), process.env['PATH'] ?? ''].join(delimiter),
      HOME: this.folder,
      GIT_AUTHOR_NAME: 'Ada',
      GIT_AUTHOR_EMAIL: 'ada@example.org',
      GIT_COMMITTER_NAME: 'Ada',
      GIT_COMMITTER_EMAIL: 'ada@example.org',
    };
  }

  /** Logs in by a new API key. */
  async login(berth: Installation, scope: string): Promise<void> {
    const body = { name: `example ${scope}`, scope };
    const { key } = await berth.client.expect<{ key: string }>(201, 'POST', '/v1/api-keys', body);
    this.key_token = key;
    this.env['BERTH_URL'] = berth.origin;
    this.env['BERTH_API_KEY'] = key;
  }

  /** The path of a file of the examples. */
  example(path: string): string {
    return join(EXAMPLES, path);
  }

  async run(cwd: string, script: string): Promise<Ran> {
    const child = spawn('bash', ['-euo', 'pipefail', '-c', script], {
      cwd,
      env: this.env,
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    const [code, out, err] = await Promise.all([
      new Promise<number | null>((resolve, reject) => child.once('error', reject).once('close', resolve)),
      text(child.stdout),
      text(child.stderr),
    ]);
    return { code, out, err };
  }

  /** Returns stdout. Fails unless the script succeeds. */
  async done(cwd: string, script: string): Promise<string> {
    const { code, out, err } = await this.run(cwd, script);
    assert.equal(code, 0, `${script}: ${err}${out}`);
    return out;
  }
}

async function text(stream: NodeJS.ReadableStream): Promise<string> {
  let all = '';
  for await (const chunk of stream.setEncoding('utf8')) all += String(chunk);
  return all;
}
