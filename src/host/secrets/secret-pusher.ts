/**
 * Keeps in the guest what new sessions need of its secrets: placeholders and the certificate, as the control plane last set them.
 * A frozen guest's agent refuses; the push is retried. SSH sessions get theirs with the keys (`session-environment.ts`).
 */
import { backoffMs, pause } from '../../shared/backoff.ts';
import { messageOf } from '../../shared/errors.ts';
import type { Log } from '../../shared/log.ts';
import type { GuestAgent } from '../guest/guest-agent.ts';
import { applySecrets, type GuestSecrets } from './apply-secrets.ts';

/** The first time, the guest's store of certificates is made anew, which takes seconds under emulation. */
const APPLY_MS = 60_000;
/** How long a start waits for it. */
const START_WAITS_MS = 30_000;

/** What the pusher needs of a machine. */
export interface MachineWithSecrets {
  readonly agent: GuestAgent;
  readonly view: 'booting' | 'up' | 'off';
  readonly gone: boolean;
  readonly resets: number;
}

interface Applied {
  readonly machine: MachineWithSecrets;
  /** A reset empties the guest's tmpfs. */
  readonly resets: number;
  readonly secrets: string;
}

export class SecretPusher {
  readonly #log: Log;
  #wanted: GuestSecrets = { environment: [], certificate: '' };
  /** Known to be in the guest. */
  #applied: Applied | null = null;
  readonly #machine: () => MachineWithSecrets | null;
  #loop: Promise<void> | null = null;

  /** `machine`: the present one. */
  constructor(log: Log, machine: () => MachineWithSecrets | null) {
    this.#log = log;
    this.#machine = machine;
  }

  want(secrets: GuestSecrets): void {
    this.#wanted = secrets;
    this.look();
  }

  /** For a guest that has just booted, was resumed, or was adopted, before anybody is let in. What fails is tried again later. */
  async apply(machine: MachineWithSecrets): Promise<void> {
    // Without secrets there is at most something to remove, and no start waits for that.
    if (this.#wanted.environment.length === 0 || this.#has(machine)) return;
    const enough = new AbortController();
    const applying = this.#apply(machine).catch((error: unknown) =>
      this.#log.warn({ reason: messageOf(error) }, 'secrets could not be applied yet'),
    );
    await Promise.race([applying, pause(START_WAITS_MS, enough.signal)]).finally(() => enough.abort());
  }

  /** The guest may be up now. */
  look(): void {
    this.#loop ??= this.#catchUp().finally(() => {
      this.#loop = null;
      // The wanted secrets may have changed since the last check.
      if (this.#behind) this.look();
    });
  }

  async #catchUp(): Promise<void> {
    for (let attempt = 0; ; attempt++) {
      const machine = this.#behind;
      if (!machine) return;
      try {
        await this.#apply(machine);
        attempt = -1;
      } catch (error) {
        if (attempt === 2) this.#log.warn({ reason: messageOf(error) }, 'secrets could not be applied yet');
        await pause(backoffMs(attempt, 100, 10_000));
      }
    }
  }

  async #apply(machine: MachineWithSecrets): Promise<void> {
    const [wanted, { resets }] = [this.#wanted, machine];
    this.#applied = null;
    await applySecrets(machine.agent, wanted, { timeout_ms: APPLY_MS });
    this.#applied = { machine, resets, secrets: textOf(wanted) };
  }

  /** The machine, if its guest is up and lacks what is wanted. */
  get #behind(): MachineWithSecrets | null {
    const machine = this.#machine();
    return machine && !machine.gone && machine.view === 'up' && !this.#has(machine) ? machine : null;
  }

  #has(machine: MachineWithSecrets): boolean {
    const applied = this.#applied;
    if (applied?.machine !== machine || applied.resets !== machine.resets) return false;
    return applied.secrets === textOf(this.#wanted);
  }
}

function textOf({ environment, certificate }: GuestSecrets): string {
  return [...environment, certificate].join('\n');
}
