/** What the control plane was told of a running guest: its resets, and whether it waits for this host's disk. */
import type { Observation } from '../../agent-api/types.ts';
import type { Machine } from './machine.ts';

export class GuestSaid {
  readonly #say: (observed: Observation) => Promise<void>;
  #resets: { readonly of: Machine; readonly count: number } | null = null;
  #stall: string | null = null;

  constructor(say: (observed: Observation) => Promise<void>) {
    this.#say = say;
  }

  /** Says that the guest was reset, if it was since that was last said: connections from before lead nowhere. */
  async sayResets(machine: Machine): Promise<void> {
    const { resets } = machine;
    const said = this.#resets?.of === machine ? this.#resets.count : 0;
    if (resets > said) await this.#say({ kind: 'rebooting' });
    this.#resets = { of: machine, count: resets };
  }

  isStallUnsaid(machine: Machine | null): boolean {
    return (machine?.stall?.code ?? null) !== this.#stall;
  }

  async sayStall({ stall }: Machine): Promise<void> {
    await this.#say(stall ? { kind: 'stalled', reason: stall } : { kind: 'resumed' });
    this.#stall = stall?.code ?? null;
  }

  /** The guest was said to run, which ends what was said of its waiting. */
  noteRunning(): void {
    this.#stall = null;
  }
}
