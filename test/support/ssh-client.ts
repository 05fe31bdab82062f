/** The real ssh program with a key of its own, knowing only the hosts that it was told of. */
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { appendFileSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

export interface SshResult {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

export interface SshTarget {
  readonly host: string;
  readonly port: number;
  readonly user: string;
}

export class SshClient {
  readonly public_key: string;
  readonly #key: string;
  readonly #known_hosts: string;

  /** Makes the key `<folder>/<name>`. */
  constructor(folder: string, name: string) {
    this.#key = join(folder, name);
    this.#known_hosts = join(folder, `${name}.known_hosts`);
    execFileSync('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-C', name, '-f', this.#key]);
    this.public_key = readFileSync(`${this.#key}.pub`, 'utf8').trim();
    this.know([]);
  }

  /** From now on these are known too. */
  know(lines: readonly string[]): void {
    appendFileSync(this.#known_hosts, lines.map((line) => `${line}\n`).join(''));
  }

  /** Runs one command and answers however it went; 255 is ssh's own failure. */
  run(
    target: SshTarget,
    command: string,
    { input = '', options = [] }: { input?: string | Uint8Array; options?: readonly string[] } = {},
  ): Promise<SshResult> {
    const args = [
      '-F',
      'none',
      ...options.flatMap((option) => ['-o', option]),
      ...['IdentitiesOnly=yes', `IdentityFile=${this.#key}`, 'IdentityAgent=none'].flatMap((o) => ['-o', o]),
      ...[`UserKnownHostsFile=${this.#known_hosts}`, 'GlobalKnownHostsFile=none'].flatMap((o) => ['-o', o]),
      ...['StrictHostKeyChecking=yes', 'BatchMode=yes', 'ConnectTimeout=20'].flatMap((o) => ['-o', o]),
      ...['ServerAliveInterval=10', 'ServerAliveCountMax=6'].flatMap((o) => ['-o', o]),
      '-p',
      String(target.port),
      `${target.user}@${target.host}`,
      command,
    ];
    return new Promise((resolve, reject) => {
      const child = spawn('ssh', args, { stdio: ['pipe', 'pipe', 'pipe'] });
      let stdout = '';
      let stderr = '';
      child.stdout.setEncoding('utf8').on('data', (text: string) => {
        stdout += text;
      });
      child.stderr.setEncoding('utf8').on('data', (text: string) => {
        stderr += text;
      });
      child.once('error', reject);
      child.once('close', (code) => resolve({ code, stdout, stderr }));
      child.stdin.on('error', () => undefined);
      child.stdin.end(input);
    });
  }

  /** The command's output; fails unless it ended with 0. */
  async output(target: SshTarget, command: string, input?: string | Uint8Array): Promise<string> {
    const result = await this.run(target, command, input === undefined ? {} : { input });
    assert.equal(result.code, 0, `ssh: ${command}: ${result.stderr}${result.stdout}`);
    return result.stdout.trim();
  }
}
