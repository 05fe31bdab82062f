/**
 * Which keys let somebody in, as the guest's sshd logs it (`LogLevel VERBOSE`): only sshd knows. Asked once a minute
 * and before the guest goes down, three small calls when nobody has logged in. Root in the guest may write what it
 * likes into that log; the control plane takes only keys that the instance lets in.
 *
 * What was logged before this agent adopted the guest is not told: when it was, nobody knows any more.
 */
import type { ControlPlaneClient } from '../../agent-api/client.ts';
import type { VmId } from '../../lib/ids.ts';
import type { GuestAgent } from '../guest/guest-agent.ts';
import { readGuestFileFrom } from '../guest/guest-files.ts';

/** At a time: what is beyond is read the next. The log is kept to some MiB (guest/rootfs/usr/lib/berth/bound-ssh-log). */
const MAX_BYTES = 128 * 1024;
/** More different keys than that, in a minute, no guest lets in. */
const MAX_LOGINS = 1_000;
const SSHD_LOG = '/run/berth/sshd.log';
const CALL_MS = 1_000;
const LOGINS_AT_ONCE = 1_000;
const ACCEPTED = /^Accepted publickey for .* (SHA256:[A-Za-z0-9+/]{43})$/;

export class LoginWatch {
  readonly #agent: GuestAgent;
  /** How far the log was read in this life of the guest; null: not yet, and what it holds is of before our time. */
  #offset: number | null;
  readonly #logins = new Set<string>();

  /** `has_past`: the guest may have logged what this agent was not there to see. */
  constructor(agent: GuestAgent, has_past: boolean) {
    this.#agent = agent;
    this.#offset = has_past ? null : 0;
  }

  /** The guest begins anew, and its log with it. */
  reset(): void {
    this.#offset = 0;
  }

  /** Looks, and says what there is to say. Never rejects: what could not be said now is said the next time. */
  async tell(say: (fingerprints: readonly string[]) => Promise<unknown>): Promise<void> {
    if (this.#agent.maybe_frozen) return;
    try {
      await this.#look();
      const fingerprints = [...this.#logins].slice(0, LOGINS_AT_ONCE);
      if (fingerprints.length === 0) return;
      await say(fingerprints);
      for (const each of fingerprints) this.#logins.delete(each);
    } catch {
      // A guest that does not answer, or a control plane.
    }
  }

  async #look(): Promise<void> {
    const from = this.#offset;
    const options = { max_bytes: MAX_BYTES, timeout_ms: CALL_MS };
    const { offset, data } = await readGuestFileFrom(this.#agent, SSHD_LOG, from ?? 'end', options);
    // A reset meanwhile.
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

/** Tells what a guest that is up has to say, if any. Never rejects. */
export async function reportLogins(
  machine: WatchedMachine | null,
  client: ControlPlaneClient,
): Promise<void> {
  if (machine?.view !== 'up') return;
  const { vm_id, epoch } = machine.record;
  await machine.logins.tell((fingerprints) => client.reportLogins({ vm_id, epoch, fingerprints }));
}
