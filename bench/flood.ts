/** A flood that runs while something else is measured. Its programs yield to others, so that what they wait for is not the processor. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { pause } from '../src/shared/retry.ts';
import { quantile } from './figure.ts';

/** Until a flood is at its height. */
const RISE_MS = 1_500;

export interface Flood {
  readonly name: string;
  readonly start: () => readonly ChildProcess[];
}

/** A program that yields to others. `enter`: words before it. */
export function flooder(words: readonly string[], enter: readonly string[] = []): ChildProcess {
  const [program = '', ...args] = [...enter, 'nice', '-n', '10', ...words];
  return spawn(program, args, { stdio: 'ignore' });
}

/** What `measure` gives during the flood. */
export async function during<T>(flood: Flood, signal: AbortSignal, measure: () => Promise<T>): Promise<T> {
  const children = flood.start();
  try {
    await pause(RISE_MS, signal);
    signal.throwIfAborted();
    const measured = await measure();
    const ended = children.find(({ exitCode }) => exitCode !== null);
    if (ended)
      throw new Error(`a flood of ${flood.name} ended by itself: ${ended.spawnargs.slice(0, 8).join(' ')}`);
    return measured;
  } finally {
    for (const child of children) {
      if (child.exitCode !== null || child.signalCode !== null) continue;
      child.kill('SIGKILL');
      await once(child, 'exit');
    }
  }
}

export interface Latency {
  readonly p50: number;
  readonly p99: number;
}

export function latencyOf(samples_ms: readonly number[]): Latency {
  return { p50: quantile(samples_ms, 0.5), p99: quantile(samples_ms, 0.99) };
}
