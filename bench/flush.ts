/**
 * Measures the whole call `POST …/vm/flush` after the guest wrote 256 MiB, random or like text, in milliseconds.
 * Compared with `cp` and fsync of the same bytes on the same file system.
 *
 * Before each measurement all earlier writes are synced, in the guest and here, and both sources are in the page cache.
 */
import { execFile } from 'node:child_process';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type { Receipt } from './api.ts';
import { type Bench, type BenchContext, type Measured, measured, median } from './figure.ts';
import { DATA_BYTES, type FlushData, randomData, textData, writeHere } from './flush-data.ts';
import { makeKey, ssh } from './ssh.ts';

const run = promisify(execFile);

interface Round {
  readonly flush_ms: number;
  readonly cp_ms: number;
  readonly receipt: Receipt;
}

type InGuest = (command: string, input?: Uint8Array) => Promise<string>;

async function cp(source: string, target: string, signal: AbortSignal): Promise<number> {
  await run('sync');
  const started_ms = performance.now();
  // coreutils' sync FILE is fsync of that file. reflink=never, because shared blocks would not be written.
  const script = 'cp --reflink=never --sparse=never "$1" "$2" && sync "$2"';
  await run('/bin/sh', ['-c', script, 'cp', source, target], { signal });
  return performance.now() - started_ms;
}

async function round(
  { installation: { api }, scratch_dir, signal }: BenchContext,
  id: string,
  guest: InGuest,
  data: FlushData,
): Promise<Round> {
  const source = join(scratch_dir, 'source');
  const target = join(scratch_dir, 'target');
  const sha256 = await writeHere(source, data);
  await guest(`set -e; set -- /root/${data.name}; ${data.command}; sync`, data.input);
  const there = (await guest(`sha256sum /root/${data.name}; sync`)).split(' ')[0];
  if (there !== sha256)
    throw new Error(`the guest has written other bytes: ${there} where ${sha256} was meant`);
  await run('sync');
  const started_ms = performance.now();
  const receipt = await api.flush(id);
  const flush_ms = performance.now() - started_ms;
  if (receipt.dirty_bytes < DATA_BYTES) throw new Error(`only ${receipt.dirty_bytes} bytes were dirty`);
  const cp_ms = await cp(source, target, signal);
  await rm(target);
  // The next round does not truncate it: freed blocks are discarded, and discards are flushed too.
  await guest(`rm /root/${data.name}; sync`);
  await api.flush(id);
  return { flush_ms, cp_ms, receipt };
}

async function all(context: BenchContext): Promise<readonly Measured[]> {
  const { installation, scratch_dir, runs, signal, say } = context;
  const { api } = installation;
  const key = await makeKey(scratch_dir);
  await api.addKey('bench-flush', key.public_key);
  const { id } = await api.createInstance('flush');
  await api.startVm(id);
  await api.untilRunning(id);
  const target = await api.ssh(id);
  const guest: InGuest = (command, input) =>
    ssh(target, command, { key, signal, ...(input === undefined ? {} : { input }) });
  // Flushes the writes of the first boot, which belong to no figure.
  await api.flush(id);
  const rounds = { random: [] as Round[], text: [] as Round[] };
  for (let number = 0; number <= runs; number++) {
    for (const data of [randomData(), textData()]) {
      const done = await round(context, id, guest, data);
      const counted = number === 0 ? ' (not counted)' : '';
      say(
        `round ${number}${counted}, ${data.name}: flush ${Math.round(done.flush_ms)} ms, cp ${Math.round(done.cp_ms)} ms; ` +
          `${mib(done.receipt.dirty_bytes)} dirty, ${mib(done.receipt.uploaded_bytes)} uploaded`,
      );
      if (number > 0) rounds[data.name].push(done);
    }
  }
  await api.deleteInstance(id);
  return [figure('random_256_mib', rounds.random), figure('text_256_mib', rounds.text)];
}

function figure(name: string, rounds: readonly Round[]): Measured {
  const of = (pick: (receipt: Receipt) => number) => median(rounds.map(({ receipt }) => pick(receipt)));
  const seconds = median(rounds.map(({ flush_ms }) => flush_ms)) / 1000;
  return measured({
    bench: 'flush',
    figure: name,
    unit: 'ms',
    values: rounds.map(({ flush_ms }) => flush_ms),
    beside: 'cp and fsync',
    beside_values: rounds.map(({ cp_ms }) => cp_ms),
    remark:
      `${Math.round(DATA_BYTES / 2 ** 20 / seconds)} MiB/s; receipt: ${mib(of((r) => r.dirty_bytes))} dirty, ` +
      `${mib(of((r) => r.uploaded_bytes))} uploaded, ${of((r) => r.segments)} segments, ${of((r) => r.duration_ms)} ms on the host`,
  });
}

function mib(bytes: number): string {
  return `${(bytes / 2 ** 20).toFixed(1)} MiB`;
}

export const flushBench: Bench = {
  name: 'flush',
  summary: 'POST …/vm/flush of 256 MiB, random and text-like, beside cp with fsync of the same bytes',
  run: all,
};
