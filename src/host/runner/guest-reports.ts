/** What the control plane was told of a running guest: its resets, and what ails it. */
import type { Observation } from '../../agent-api/types.ts';
import type { Machine } from '../machine/machine.ts';

export class GuestReports {
  readonly #report: (observed: Observation) => Promise<void>;
  #resets: { readonly of: Machine; readonly count: number } | null = null;
  #trouble: string | null = null;

  constructor(say: (observed: Observation) => Promise<void>) {
    this.#report = say;
  }

  /** Says that the guest was reset, if it was since that was last said: connections from before lead nowhere. */
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

  /** The guest was said to run, which ends what was said to ail it. */
  noteRunning(): void {
    this.#trouble = null;
  }
}
