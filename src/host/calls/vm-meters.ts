/**
 * The last hour of every VM of this host, one sample per 15 s, in memory: most samples are never read, so they are not written to
 * the database, and a restarted agent starts with none. Bounded: 240 small samples per VM.
 */
import { fits } from '../../agent-api/check.ts';
import { type MetricsResult, type UsageResult, VmSample } from '../../agent-api/host-calls.ts';
import { pause } from '../../lib/backoff.ts';
import type { Machine } from '../machine/machine.ts';
import type { VmRunner } from '../runner/vm-runner.ts';
import { measureVm } from './measure-vm.ts';

const SAMPLE_S = 15;
const SAMPLES = 240;
/** A sample costs the guest work: once a minute, and for each read. */
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

  /** The newest sample of each VM, of at most `limit` VMs. */
  newest(limit: number): UsageResult {
    const vms = [...this.#runners()].flatMap((runner) => {
      const machine = runner.machineOf();
      const sample = machine && this.#samples.get(machine)?.at(-1);
      // One guest's invalid answer must not fail the others' samples.
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
