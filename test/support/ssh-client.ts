/** Runs the real ssh program with a new key. It trusts only the host keys that the test adds. */
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { appendFileSync, existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

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

/** A running ssh (or sftp…), until either side ends it. */
export interface RunningSsh {
  /** Its exit code; null after a signal. */
  readonly ended: Promise<number | null>;
  readonly running: () => boolean;
  /** Its output so far, stdout and stderr. */
  readonly printed: () => string;
  readonly send: (text: string) => void;
  readonly kill: () => void;
}

export interface KeyKind {
  /** As for `ssh-keygen -t`. */
  readonly type: string;
  readonly bits?: number;
  /** The library that stands for the hardware of an `-sk` key. */
  readonly provider?: string;
}

/**
 * Later commands reuse the first one's connection, because an emulated guest needs a second for a handshake and a tenth of a
 * second for a command.
 */
const SHARED = ['ControlMaster=auto', 'ControlPersist=yes'];

export class SshClient {
  readonly public_key: string;
  readonly key_path: string;
  readonly #known_hosts: string;
  readonly #provider: string | undefined;

  /** Makes the key `<folder>/<name>`. */
  constructor(folder: string, name: string, { type, bits, provider }: KeyKind = { type: 'ed25519' }) {
    this.key_path = join(folder, name);
    this.#known_hosts = join(folder, `${name}.known_hosts`);
    this.#provider = provider;
    const more = [
      ...(bits === undefined ? [] : ['-b', String(bits)]),
      ...(provider === undefined ? [] : ['-w', provider]),
    ];
    execFileSync('ssh-keygen', ['-q', '-t', type, ...more, '-N', '', '-C', name, '-f', this.key_path]);
    this.public_key = readFileSync(`${this.key_path}.pub`, 'utf8').trim();
    this.know([]);
  }

  /** Trusts these host keys too. */
  know(lines: readonly string[]): void {
    appendFileSync(this.#known_hosts, lines.map((line) => `${line}\n`).join(''));
  }

  /** Options for ssh, sftp and scp: this key, the trusted host keys, no prompts. `more` overrides them. */
  options(more: readonly string[] = []): string[] {
    const provider = this.#provider === undefined ? [] : [`SecurityKeyProvider=${this.#provider}`];
    const options = [
      ...more,
      ...provider,
      ...['IdentitiesOnly=yes', `IdentityFile=${this.key_path}`, 'IdentityAgent=none'],
      // An emulated guest needs a tenth of a second more for the default, which adds a post-quantum exchange.
      'KexAlgorithms=curve25519-sha256',
      ...[`UserKnownHostsFile=${this.#known_hosts}`, 'GlobalKnownHostsFile=none'],
      ...['StrictHostKeyChecking=yes', 'BatchMode=yes', 'ConnectTimeout=20'],
      ...['ServerAliveInterval=10', 'ServerAliveCountMax=6'],
    ];
    return ['-F', 'none', ...options.flatMap((option) => ['-o', option])];
  }

  /** Starts `ssh OPTIONS FLAGS user@host COMMAND`. */
  start(
    target: SshTarget,
    { flags = [], options = [], command }: { flags?: string[]; options?: string[]; command?: string } = {},
  ): RunningSsh {
    const where = ['-p', String(target.port), ...flags, `${target.user}@${target.host}`];
    return startProgram('ssh', [
      ...this.options(options),
      ...where,
      ...(command === undefined ? [] : [command]),
    ]);
  }

  /** Runs one command, and returns its result even if it fails; 255 is a failure of ssh itself. */
  run(
    target: SshTarget,
    command: string,
    { input = '', options = [] }: { input?: string | Uint8Array; options?: readonly string[] } = {},
  ): Promise<SshResult> {
    const where = ['-p', String(target.port), `${target.user}@${target.host}`];
    return runProgram('ssh', [...this.options(options), ...where, command], input);
  }

  /** The command's output. Fails unless the exit code is 0. */
  async output(
    target: SshTarget,
    command: string,
    { input = '', shared = false }: { input?: string | Uint8Array; shared?: boolean } = {},
  ): Promise<string> {
    const options = shared ? [`ControlPath=${this.#shared(target)}`, ...SHARED] : [];
    const result = await this.run(target, command, { input, options });
    assert.equal(result.code, 0, `ssh: ${command}: ${result.stderr}${result.stdout}`);
    return result.stdout.trim();
  }

  /** Ends the connection of `shared` commands, if there is one. The next command opens another. */
  async disconnect(target: SshTarget): Promise<void> {
    const path = this.#shared(target);
    if (existsSync(path))
      await runProgram('ssh', ['-F', 'none', '-o', `ControlPath=${path}`, '-O', 'exit', 'x']);
  }

  #shared({ port }: SshTarget): string {
    return join(dirname(this.key_path), `shared-${port}`);
  }
}

/** Runs a program to its end. */
export function runProgram(
  program: string,
  args: readonly string[],
  input: string | Uint8Array = '',
  env: Record<string, string> = {},
): Promise<SshResult> {
  return new Promise((resolve, reject) => {
    const child = spawn(program, args, { stdio: ['pipe', 'pipe', 'pipe'], env: { ...process.env, ...env } });
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

function startProgram(program: string, args: readonly string[]): RunningSsh {
  const child = spawn(program, args, { stdio: ['pipe', 'pipe', 'pipe'] });
  let printed = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => {
      printed += text;
    });
  }
  child.stdin.on('error', () => undefined);
  const ended = new Promise<number | null>((resolve, reject) => {
    child.once('error', reject);
    child.once('exit', (code) => resolve(code));
  });
  return {
    ended,
    running: () => child.exitCode === null && child.signalCode === null,
    printed: () => printed,
    send: (text) => child.stdin.write(text),
    kill: () => child.kill('SIGKILL'),
  };
}
