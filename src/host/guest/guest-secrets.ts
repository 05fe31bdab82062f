/**
 * Keeps in a guest what its new sessions need for secrets: the placeholders, as environment variables, and the
 * certificate of the instance's authority, as the control plane last set them. While a flush has frozen the guest, its
 * agent refuses, and the push is retried. SSH sessions get their environment with the authorized keys
 * (`sessionEnvironment`).
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { SecretForHost } from '../../protocol/host-types.ts';
import { messageOf } from '../../shared/errors.ts';
import type { Log } from '../../shared/log.ts';
import { backoffMs, pause } from '../../shared/retry.ts';
import { untrustedText } from '../../shared/untrusted-text.ts';
import type { SessionEnvironment } from './authorized-keys.ts';
import { GuestAgentError, type GuestCommands } from './guest-agent.ts';
import { guestExec, readGuestFile } from './guest-commands.ts';

const SCRIPT = readFileSync(join(import.meta.dirname, 'apply-secrets.sh'), 'utf8');
/** On the disk of a guest that trusts a certificate of ours. */
const KEPT = '/etc/berth-secrets-ca.pem';
const KEPT_MAX_BYTES = 16_384;
/** The script's exit code for a call that a later one has overtaken. */
const SUPERSEDED = 4;

/** What a guest gets of its secrets. */
export interface GuestSecrets {
  /** Empty: there are none. */
  readonly environment: SessionEnvironment;
  /** Of the authority that signs for hosts that a secret names. */
  readonly certificate: string;
}

/** Rises with every call, also across restarts of this process, per guest; as in `authorized-keys.ts`. */
const last_sequences = new WeakMap<GuestCommands, number>();
function nextSequence(agent: GuestCommands): number {
  const next = Math.max((last_sequences.get(agent) ?? 0) + 1, Date.now());
  last_sequences.set(agent, next);
  return next;
}

/** Rejects if the guest does not confirm within `timeout_ms`, or executed a later call before. */
export async function applySecrets(
  agent: GuestCommands,
  { environment, certificate }: GuestSecrets,
  { timeout_ms }: { readonly timeout_ms: number },
): Promise<void> {
  const none = environment.length === 0;
  // Most guests never had any: that costs no process.
  if (none && !(await hasTrusted(agent))) return;
  const result = await guestExec(agent, {
    path: '/usr/lib/berth/busybox',
    args: ['sh', '-c', SCRIPT, 'apply-secrets', String(nextSequence(agent)), none ? '' : certificate.trim()],
    input: environment.map((each) => `export ${each}\n`).join(''),
    timeout_ms,
  });
  if (result.exit_code === 0) return;
  if (result.exit_code === SUPERSEDED) {
    const latest = Number(/^(\d{1,15})\n$/.exec(result.stdout.toString('latin1'))?.[1] ?? 0);
    last_sequences.set(agent, Math.max(last_sequences.get(agent) ?? 0, latest));
  }
  const why = untrustedText(result.stderr.toString('utf8'));
  throw new Error(`the guest did not apply its secrets (exit code ${result.exit_code}): ${why}`);
}

async function hasTrusted(agent: GuestCommands): Promise<boolean> {
  try {
    await readGuestFile(agent, KEPT, KEPT_MAX_BYTES);
    return true;
  } catch (error) {
    if (error instanceof GuestAgentError && /No such file/i.test(error.desc)) return false;
    throw error;
  }
}

/** The first time, the guest's store of certificates is made anew, which takes seconds under emulation. */
const APPLY_MS = 60_000;
/** How long a start waits for it. */
const START_WAITS_MS = 30_000;

/** What the pusher needs of a machine. */
export interface MachineWithSecrets {
  readonly agent: GuestCommands;
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

/** apply-secrets.sh puts them there. */
const CERTIFICATE = '/run/berth/secrets-ca.pem';
const ALL_CERTIFICATES = '/run/berth/ca-bundle.pem';

/**
 * What new sessions of a guest get: placeholders of secrets, and where the certificates are. Pure.
 * None without secrets.
 */
export function sessionEnvironment(secrets: readonly SecretForHost[] = []): SessionEnvironment {
  if (secrets.length === 0) return [];
  return [
    ...secrets.map(({ name, placeholder }) => `BERTH_SECRET_${name}=${placeholder}`),
    // In addition to those that Node.js has.
    `NODE_EXTRA_CA_CERTS=${CERTIFICATE}`,
    // In place of those that a program has.
    `REQUESTS_CA_BUNDLE=${ALL_CERTIFICATES}`,
    `SSL_CERT_FILE=${ALL_CERTIFICATES}`,
  ];
}
