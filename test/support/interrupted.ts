/**
 * Cleans up after an interrupted test file: runs every registered cleanup, and kills every QEMU below this process,
 * because a QEMU outlives its parent by design.
 *
 * The signal may arrive twice: from the terminal, and from the test runner, which sends SIGTERM to its files and exits
 * at once.
 */
import {
  commandLineOf,
  identityOfProcess,
  killProcess,
  type ProcessIdentity,
} from '../../src/host/qemu/qemu-process.ts';
import { childrenOf } from './processes.ts';

const endings = new Set<() => Promise<void>>();
let is_interrupted = false;

for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.on(signal, () => {
    if (!is_interrupted) void endAll();
    is_interrupted = true;
  });
}

async function endAll(): Promise<never> {
  // Nobody reads the output of tests that fail now. A broken pipe must not end the process early.
  for (const stream of [process.stdout, process.stderr]) stream.on('error', () => undefined);
  // Found while their parents live, because afterwards nothing shows who started them.
  const machines = qemusBelow(process.pid);
  // Repeated for endings that were registered meanwhile or failed at first.
  for (let round = 0; round < 3 && endings.size > 0; round += 1)
    await Promise.allSettled([...endings].map((end) => end()));
  for (const each of [...machines, ...qemusBelow(process.pid)]) {
    killProcess(each, 'SIGCONT');
    killProcess(each, 'SIGKILL');
  }
  process.exit(1);
}

function qemusBelow(pid: number): ProcessIdentity[] {
  return childrenOf(pid).flatMap((child) => {
    const identity = /qemu-system-/.test(commandLineOf(child)[0] ?? '') ? identityOfProcess(child) : null;
    return [...(identity ? [identity] : []), ...qemusBelow(child)];
  });
}

/** Calls `end` when the run is interrupted. Returns the function that unregisters it. */
export function endIfInterrupted(end: () => Promise<void>): () => void {
  endings.add(end);
  return () => void endings.delete(end);
}
