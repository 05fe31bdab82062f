/** Uses SSH for the benchmarks: runs commands by OpenSSH's client, and waits for the greeting of a server. */
import { execFile, spawn } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';

const run = promisify(execFile);

export interface SshKey {
  readonly private_path: string;
  readonly public_key: string;
}

export interface SshTarget {
  readonly host: string;
  readonly port: number;
}

export async function makeKey(folder: string): Promise<SshKey> {
  const private_path = join(folder, 'id_ed25519');
  await run('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-C', 'bench', '-f', private_path]);
  return { private_path, public_key: (await readFile(`${private_path}.pub`, 'utf8')).trim() };
}

const RETRY_MS = 20;
const PATIENCE_MS = 3_000;
const BANNER_MS = 120_000;

/**
 * Resolves at the first SSH greeting (RFC 4253, section 4.2). Makes one attempt at a time with a long timeout, because each
 * attempt costs the guest a process.
 */
export async function untilBanner(target: SshTarget, signal: AbortSignal): Promise<void> {
  const deadline_ms = performance.now() + BANNER_MS;
  while (!(await greets(target))) {
    if (performance.now() > deadline_ms) throw new Error(`no SSH server greets at port ${target.port}`);
    await sleep(RETRY_MS, undefined, { signal });
  }
}

function greets({ host, port }: SshTarget): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect({ host, port });
    const done = (answer: boolean) => {
      socket.destroy();
      resolve(answer);
    };
    socket.setTimeout(PATIENCE_MS, () => done(false));
    for (const event of ['error', 'close']) socket.on(event, () => done(false));
    socket.once('data', (chunk) => done(chunk.toString('latin1').startsWith('SSH-2.0-')));
  });
}

export interface SshOptions {
  readonly key: SshKey;
  readonly signal: AbortSignal;
  readonly input?: Uint8Array;
}

export const SSH_SETTINGS: readonly string[] = [
  'BatchMode=yes',
  'IdentitiesOnly=yes',
  // The host key is not verified: the guest is new and on this machine, and nothing secret is sent.
  'StrictHostKeyChecking=no',
  'UserKnownHostsFile=/dev/null',
  'ConnectTimeout=20',
  'LogLevel=ERROR',
];

/** Runs a command as root in the guest, and returns its output. @throws with ssh's message */
export async function ssh(
  target: SshTarget,
  command: string,
  { key, signal, input }: SshOptions,
): Promise<string> {
  const where = ['-p', String(target.port), '-i', key.private_path, `root@${target.host}`];
  const child = spawn(
    'ssh',
    ['-F', 'none', ...SSH_SETTINGS.flatMap((each) => ['-o', each]), ...where, command],
    {
      signal,
      stdio: ['pipe', 'pipe', 'pipe'],
    },
  );
  const output: Buffer[] = [];
  let errors = '';
  child.stdout.on('data', (chunk: Buffer) => output.push(chunk));
  child.stderr.on('data', (chunk: Buffer) => {
    errors += chunk.toString('utf8');
  });
  child.stdin.on('error', () => undefined);
  child.stdin.end(input);
  const ended = Promise.withResolvers<number | null>();
  child.once('error', ended.reject);
  child.once('close', ended.resolve);
  const code = await ended.promise;
  if (code !== 0) throw new Error(`ssh … ${command.slice(0, 60)}: exit code ${code}: ${errors.trim()}`);
  return Buffer.concat(output).toString('utf8').trim();
}
