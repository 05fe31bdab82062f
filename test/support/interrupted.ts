/**
 * Ends what a test file has started when the run is interrupted: everything that registered here, and every QEMU below this
 * process. Those outlive their parents by design. A signal arrives more than once: from the terminal, and from the runner, which
 * sends SIGTERM to its files and exits at once.
 */
import {
  commandLineOf,
  identityOf,
  killProcess,
  type ProcessIdentity,
} from '../../src/host/vm/process-identity.ts';
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
  // What tests fail with now has no reader: that is not to end the process before its time.
  for (const stream of [process.stdout, process.stderr]) stream.on('error', () => undefined);
  // As long as whoever started them lives: afterwards nothing tells whose they are.
  const machines = qemusBelow(process.pid);
  // Again for what began meanwhile, and for what could not be ended at once.
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
    const identity = /qemu-system-/.test(commandLineOf(child)[0] ?? '') ? identityOf(child) : null;
    return [...(identity ? [identity] : []), ...qemusBelow(child)];
  });
}

/** Calls `end` when the run is interrupted, until the answer is called. */
export function endIfInterrupted(end: () => Promise<void>): () => void {
  endings.add(end);
  return () => void endings.delete(end);
}
