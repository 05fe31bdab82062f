/**
 * Measures execs, compared with ssh into the same guest: the time of a finished `true`, and 1 GiB of output.
 *
 * - Berth: `POST …/execs`, then `GET …/output?follow=true` until `exit`. The output comes by the WebSocket of an
 *   attached reader, so none of it is left out.
 * - ssh: OpenSSH's client over a kept connection (ControlMaster), which each command joins. `channel_p50` subtracts the
 *   time of a client that joins and opens no channel. About that would a program pay that speaks SSH itself.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { WebSocket } from 'ws';
import type { Api, SshView } from './api.ts';
import { type Bench, type BenchContext, type Measured, measured, quantile } from './figure.ts';
import { makeKey, type SshKey, untilBanner } from './ssh.ts';

/** Finished in each round, on each side. */
const TIMES = 100;
const OUTPUT_BYTES = 2 ** 30;
const OUTPUT = ['head', '-c', String(OUTPUT_BYTES), '/dev/zero'];

async function timed(work: () => Promise<unknown>): Promise<number> {
  const began_ms = performance.now();
  await work();
  return performance.now() - began_ms;
}

async function times(count: number, work: () => Promise<unknown>): Promise<number[]> {
  const all: number[] = [];
  while (all.length < count) all.push(await timed(work));
  return all;
}

/** OpenSSH over one connection. */
class KeptConnection {
  readonly #words: readonly string[];

  private constructor(words: readonly string[]) {
    this.#words = words;
  }

  static async open(target: SshView, key: SshKey, folder: string): Promise<KeptConnection> {
    const settings = [
      'BatchMode=yes',
      'StrictHostKeyChecking=no',
      'UserKnownHostsFile=/dev/null',
      'LogLevel=ERROR',
    ];
    const connection = new KeptConnection([
      ...['-F', 'none', ...settings.flatMap((each) => ['-o', each]), '-S', join(folder, 'ssh')],
      ...['-i', key.private_path, '-p', String(target.port), `root@${target.host}`],
    ]);
    await connection.#run(['-M', '-f', '-N']);
    return connection;
  }

  /** Returns the number of bytes that it printed. */
  run(...command: readonly string[]): Promise<number> {
    return this.#run([], command);
  }
  /** A client that opens no channel. */
  join(): Promise<number> {
    return this.#run(['-O', 'check']);
  }
  close(): Promise<number> {
    return this.#run(['-O', 'exit']);
  }

  async #run(options: readonly string[], command: readonly string[] = []): Promise<number> {
    const child = spawn('ssh', [...options, ...this.#words, ...command], {
      stdio: ['ignore', 'pipe', 'ignore'],
    });
    let bytes = 0;
    child.stdout.on('data', (chunk: Buffer) => {
      bytes += chunk.length;
    });
    const [code] = await once(child, 'close');
    if (code !== 0) throw new Error(`ssh ${options.join(' ')} ${command[0]}: exit code ${code}`);
    return bytes;
  }
}

async function finishedTrue(api: Api, path: string): Promise<void> {
  const { id } = await api.call<{ id: string }>('POST', path, { command: ['true'] });
  const events = await api.text(`${path}/${id}/output?follow=true`);
  if (!events.includes('event: exit')) throw new Error(`no exit: ${events.slice(0, 200)}`);
}

async function outputByStream(api: Api, path: string): Promise<void> {
  const { id } = await api.call<{ id: string }>('POST', path, { command: OUTPUT });
  const socket = new WebSocket(`${api.url.replace(/^http/, 'ws')}${path}/${id}/stream`, {
    headers: api.authorization,
    perMessageDeflate: false,
  });
  let bytes = 0;
  socket.on('message', (data: Buffer, is_binary: boolean) => {
    if (is_binary) bytes += data.length - 1;
  });
  await once(socket, 'close');
  if (bytes !== OUTPUT_BYTES) throw new Error(`${bytes} bytes of output arrived`);
}

async function outputBySsh(ssh: KeptConnection): Promise<void> {
  const bytes = await ssh.run(...OUTPUT);
  if (bytes !== OUTPUT_BYTES) throw new Error(`ssh printed ${bytes} bytes`);
}

async function run(context: BenchContext): Promise<readonly Measured[]> {
  const { installation, scratch_dir, signal } = context;
  const { api } = installation;
  const key = await makeKey(scratch_dir);
  await api.addKey('bench-execs', key.public_key);
  const { id } = await api.createInstance('execs');
  await api.startVm(id);
  await api.untilRunning(id);
  const target = await api.ssh(id);
  await untilBanner(target, signal);
  const ssh = await KeptConnection.open(target, key, scratch_dir);
  try {
    return await rounds(context, `/v1/instances/${id}/execs`, ssh);
  } finally {
    await ssh.close();
    await api.deleteInstance(id);
  }
}

async function rounds(
  { installation: { api }, runs, say }: BenchContext,
  path: string,
  ssh: KeptConnection,
): Promise<readonly Measured[]> {
  const values = new Map<string, [number[], number[]]>();
  const note = (figure: string, ours: number, theirs: number) => {
    const [mine, other] = values.get(figure) ?? [[], []];
    values.set(figure, [
      [...mine, ours],
      [...other, theirs],
    ]);
  };
  for (let round = 0; round <= runs; round++) {
    const execs = await times(TIMES, () => finishedTrue(api, path));
    const sshs = await times(TIMES, () => ssh.run('true'));
    const joins = await times(TIMES, () => ssh.join());
    const streamed_ms = await timed(() => outputByStream(api, path));
    const by_ssh_ms = await timed(() => outputBySsh(ssh));
    const rate = (ms: number) => OUTPUT_BYTES / 2 ** 20 / (ms / 1000);
    say(
      `round ${round}${round === 0 ? ' (not counted)' : ''}: true ${quantile(execs, 0.5).toFixed(1)}, ssh ${quantile(sshs, 0.5).toFixed(1)}, ` +
        `ssh's client alone ${quantile(joins, 0.5).toFixed(1)} ms; output ${rate(streamed_ms).toFixed(0)}, ssh ${rate(by_ssh_ms).toFixed(0)} MiB/s`,
    );
    if (round === 0) continue;
    note('true_p50', quantile(execs, 0.5), quantile(sshs, 0.5));
    note('true_p99', quantile(execs, 0.99), quantile(sshs, 0.99));
    note('channel_p50', quantile(execs, 0.5), quantile(sshs, 0.5) - quantile(joins, 0.5));
    note('output_1_gib', rate(streamed_ms), rate(by_ssh_ms));
  }
  return [...values].map(([figure, [ours, theirs]]) =>
    measured({
      ...{ bench: 'execs', figure, unit: figure.startsWith('output') ? 'MiB/s' : 'ms' },
      ...{ values: ours, beside: BESIDE[figure] ?? 'ssh', beside_values: theirs, remark: '' },
    }),
  );
}

const BESIDE: Readonly<Record<string, string>> = {
  true_p50: 'ssh … true, kept connection',
  true_p99: 'ssh … true, kept connection',
  channel_p50: "the same without its client's process",
  output_1_gib: 'ssh, kept connection',
};

export const execsBench: Bench = {
  name: 'execs',
  summary: 'a finished `true` and 1 GiB of output, beside ssh over a kept connection',
  run,
};
