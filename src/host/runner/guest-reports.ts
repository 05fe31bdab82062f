/** Which resets and which trouble of a running guest were reported to the control plane. */
import type { Observation, Reason } from '../../protocol/types.ts';
import type { Machine } from '../machine/machine.ts';

export class GuestReports {
  readonly #report: (observed: Observation) => Promise<void>;
  #resets: { readonly of: Machine; readonly count: number } | null = null;
  #trouble: string | null = null;

  constructor(report: (observed: Observation) => Promise<void>) {
    this.#report = report;
  }

  /** Reports a reset since the last report: connections from before it are dead. */
  async reportResets(machine: Machine): Promise<void> {
    const { resets } = machine;
    const said = this.#resets?.of === machine ? this.#resets.count : 0;
    if (resets > said) await this.#report({ kind: 'rebooting' });
    this.#resets = { of: machine, count: resets };
  }

  hasUnreportedTrouble(machine: Machine | null): boolean {
    return (machine?.trouble?.code ?? null) !== this.#trouble;
  }

  async reportTrouble({ trouble }: Machine): Promise<void> {
    await this.#report(trouble ? { kind: 'stalled', reason: trouble } : { kind: 'resumed' });
    this.#trouble = trouble?.code ?? null;
  }

  /** The guest was reported as running, with this problem alone. */
  noteRunning(access_problem: Reason | null): void {
    this.#trouble = access_problem?.code ?? null;
  }
}
