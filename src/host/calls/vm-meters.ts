/**
 * The last hour of every VM of this host, one sample in 15 s, in memory: nobody may ever read it, so it is not worth
 * a write to the database each time, and a restarted agent begins anew. Bounded: 240 small samples a VM.
 */
import { fits } from '../../agent-api/check.ts';
import { type MetricsResult, type UsageResult, VmSample } from '../../agent-api/host-calls.ts';
import { pause } from '../../lib/backoff.ts';
import type { Machine } from '../machine/machine.ts';
import type { VmRunner } from '../runner/vm-runner.ts';
import { measureVm } from './measure-vm.ts';

const SAMPLE_S = 15;
const SAMPLES = 240;
/** Asking the guest costs it something: once a minute, and when somebody looks. */
const GUEST_EVERY = 4;

export class VmMeters {
  readonly #samples = new WeakMap<Machine, VmSample[]>();
  readonly #runners: () => Iterable<VmRunner>;

  constructor(runners: () => Iterable<VmRunner>) {
    this.#runners = runners;
  }

  async run(signal: AbortSignal): Promise<void> {
    for (let round = 0; !signal.aborted; round++) {
      const all = [...this.#runners()].flatMap((runner) => {
        const machine = runner.machineOf();
        return machine ? [this.#take(machine, round % GUEST_EVERY === 0 && runner.isQuiet)] : [];
      });
      await Promise.allSettled(all);
      await pause(SAMPLE_S * 1000, signal);
    }
  }

  /** Rejects when the VM is gone. */
  async read(machine: Machine, guest: boolean): Promise<MetricsResult> {
    const now = await measureVm(machine, guest);
    return { now, interval_seconds: SAMPLE_S, samples: this.#samples.get(machine) ?? [] };
  }

  /** The newest sample of each VM that has one, at most so many. */
  newest(limit: number): UsageResult {
    const vms = [...this.#runners()].flatMap((runner) => {
      const machine = runner.machineOf();
      const sample = machine && this.#samples.get(machine)?.at(-1);
      // What one guest says of itself is not to cost the others their figures.
      return sample && fits(VmSample, sample) ? [{ instance_id: runner.instance_id, sample }] : [];
    });
    return { vms: vms.slice(0, limit) };
  }

  async #take(machine: Machine, guest: boolean): Promise<void> {
    const sample = await measureVm(machine, guest);
    const samples = this.#samples.get(machine) ?? [];
    samples.push(sample);
    if (samples.length > SAMPLES) samples.shift();
    this.#samples.set(machine, samples);
  }
}
