/**
 * Gives a running guest the new size of its disk, and grows its root file system: one attempt for each size and boot of the guest.
 * What fails happens at the guest's next boot, which grows the file system before anything else. Each part may be repeated, so a
 * successor of an agent that died in between begins again.
 */
import type { Assignment } from '../../protocol/types.ts';
import { messageOf } from '../../shared/errors.ts';
import type { Log } from '../../shared/log.ts';
import { growRoot } from '../guest/grow-root.ts';
import type { Machine } from '../machine/machine.ts';

interface Attempt {
  readonly machine: Machine;
  readonly resets: number;
  readonly disk_bytes: number;
}

export class DiskGrowth {
  readonly #log: Log;
  #tried: Attempt | null = null;

  constructor(log: Log) {
    this.#log = log;
  }

  isWanted(assignment: Assignment | null, machine: Machine | null): boolean {
    if (!assignment?.disk_grows || !machine) return false;
    const { machine: of, resets, disk_bytes } = this.#tried ?? {};
    return of !== machine || resets !== machine.resets || disk_bytes !== assignment.spec.disk_bytes;
  }

  /** Whether the guest's root file system has the size. @throws the signal's reason */
  async attempt(machine: Machine, disk_bytes: number, signal: AbortSignal): Promise<boolean> {
    const { resets } = machine;
    try {
      await resize(machine, disk_bytes, signal);
      await growRoot(machine.agent, disk_bytes, AbortSignal.any([signal, machine.bootEnded(resets)]));
      this.#log.info({ disk_bytes }, 'the disk of a running guest has grown');
      return true;
    } catch (error) {
      signal.throwIfAborted();
      const reason = messageOf(error);
      this.#log.warn(
        { disk_bytes, reason },
        'the disk of a running guest did not grow; it does at its next boot',
      );
      return false;
    } finally {
      if (!signal.aborted) this.#tried = { machine, resets, disk_bytes };
    }
  }
}

/** Also sets a size that the disk already has, because that tells a guest that resumed with the old size. */
async function resize(machine: Machine, disk_bytes: number, signal: AbortSignal): Promise<void> {
  const { lazy } = machine;
  const work = async () => {
    // QEMU resizes no disk that it exports.
    await machine.exported.withdraw();
    await machine.disk.resize(disk_bytes);
  };
  // It waits for reads under way, as a flush does. The filling connects again by itself.
  await (lazy ? lazy.duringFlush(work, signal) : work());
}
