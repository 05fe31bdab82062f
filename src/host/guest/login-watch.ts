/**
 * Which keys were used to log in, from the log of the guest's sshd (`LogLevel VERBOSE`): only sshd knows. Read once a minute and
 * before the guest goes down; three small calls if nobody has logged in. Root in the guest can write anything into that log, so
 * the control plane accepts only keys of the instance.
 *
 * Logins from before this agent adopted the guest are not reported: their time is unknown.
 */
import { BATCHES, BatchSender } from '../../protocol/batches.ts';
import type { ControlPlaneClient } from '../../protocol/client.ts';
import type { VmId } from '../../shared/ids.ts';
import type { Log } from '../../shared/log.ts';
import type { GuestAgent } from './guest-agent.ts';
import { readGuestFileFrom } from './guest-files.ts';

/** Per read; the next read continues. The log is bounded to some MiB (guest/rootfs/usr/lib/berth/bound-ssh-log). */
const MAX_BYTES = 128 * 1024;
/** Different keys between two reports; far more than an instance has. */
const MAX_LOGINS = 1_000;
const SSHD_LOG = '/run/berth/sshd.log';
const CALL_MS = 1_000;
const ACCEPTED = /^Accepted publickey for .* (SHA256:[A-Za-z0-9+/]{43})$/;

export class LoginWatch {
  readonly #agent: GuestAgent;
  /** How far the log of this boot was read. null: not yet, and it holds logins from before this agent. */
  #offset: number | null;
  readonly #logins = new Set<string>();
  readonly #sender: BatchSender<typeof BATCHES.logins.item>;

  /** `has_past`: the log may hold logins from before this agent. */
  constructor(agent: GuestAgent, has_past: boolean, log: Pick<Log, 'warn'>) {
    this.#agent = agent;
    this.#sender = new BatchSender(BATCHES.logins, log);
    this.#offset = has_past ? null : 0;
  }

  /** The guest was reset, and its log is new. */
  reset(): void {
    this.#offset = 0;
  }

  /** Reads new logins and reports them. Never rejects: what fails is repeated the next time. */
  async report(send: (fingerprints: readonly string[]) => Promise<unknown>): Promise<void> {
    if (this.#agent.maybe_frozen) return;
    try {
      await this.#read();
      if (this.#logins.size === 0) return;
      await this.#sender.send([...this.#logins], {
        post: send,
        settled: (fingerprints) => {
          for (const each of fingerprints) this.#logins.delete(each);
        },
      });
    } catch {
      // The guest or the control plane does not answer.
    }
  }

  async #read(): Promise<void> {
    const from = this.#offset;
    const options = { max_bytes: MAX_BYTES, timeout_ms: CALL_MS };
    const { offset, data } = await readGuestFileFrom(this.#agent, SSHD_LOG, from ?? 'end', options);
    // The guest was reset meanwhile.
    if (this.#offset !== from) return;
    const whole = data.subarray(0, data.lastIndexOf('\n') + 1);
    this.#offset = offset + whole.length;
    for (const line of whole.toString('latin1').split(/\r?\n/)) {
      const fingerprint = ACCEPTED.exec(line)?.[1];
      if (fingerprint !== undefined && this.#logins.size < MAX_LOGINS) this.#logins.add(fingerprint);
    }
  }
}

interface WatchedMachine {
  readonly view: 'booting' | 'up' | 'off';
  readonly record: { readonly vm_id: VmId; readonly epoch: number };
  readonly logins: LoginWatch;
}

/** Reports new logins of a guest that is up. Never rejects. */
export async function reportLogins(
  machine: WatchedMachine | null,
  client: ControlPlaneClient,
): Promise<void> {
  if (machine?.view !== 'up') return;
  const { vm_id, epoch } = machine.record;
  await machine.logins.report((fingerprints) => client.reportLogins({ vm_id, epoch, fingerprints }));
}
