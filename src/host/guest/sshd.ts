/**
 * Watches the sshd of a guest: reads its host key, waits until it listens and the guest's network answers, and reports
 * which keys were used to log in.
 *
 * An SSH greeting proves that sshd listens and the network answers. But it costs the guest an sshd process, which under
 * emulation takes an eighth of a start from a template. So sshd's log shows that it listens, and a connection that the
 * guest's network refuses shows that the network answers. If sshd does not listen, `sshd -t` checks its settings and
 * keys, and its log says what else is wrong.
 */
import { createSocket } from 'node:dgram';
import { connect } from 'node:net';
import { BATCHES, BatchSender } from '../../protocol/batches.ts';
import type { ControlPlaneClient } from '../../protocol/client.ts';
import type { HostKey, Reason } from '../../protocol/types.ts';
import { errnoOf } from '../../shared/errors.ts';
import type { VmId } from '../../shared/ids.ts';
import type { Log } from '../../shared/log.ts';
import { pause } from '../../shared/retry.ts';
import { fingerprintOf } from '../../shared/ssh-fingerprint.ts';
import { untrustedText } from '../../shared/untrusted-text.ts';
import type { GuestAgent, GuestCommands } from './guest-agent.ts';
import { guestExec, readGuestFile, readGuestFileFrom, watchGuestFile } from './guest-commands.ts';

const HOST_KEY = '/etc/ssh/ssh_host_ed25519_key.pub';
const HOST_KEY_MAX_BYTES = 1_024;
/** Each start of sshd logs first where it listens. */
const SSHD_LOG = '/run/berth/sshd.log';
const LISTENS = /^Server listening on \S+ port 22\.\r?$/m;
const SSHD_LOG_MAX_BYTES = 65_536;
const LOG_POLL_MS = 15;
/** After this, try a greeting instead of the log. */
const LOG_PATIENCE_MS = 2_000;
/** For a greeting. On a busy host it takes long, and each abandoned try has cost sshd a process. */
const BANNER_TRY_MS = 2_000;
const BANNER_TRY_MAX_MS = 20_000;
const LOOPBACK = '127.0.0.1';
/** It starts while the guest's network may still come up. */
const NETWORK_UP_MS = 30_000;
/** discard (RFC 863): hardly any guest listens there, and its refusal costs the guest nothing. */
const QUIET_PORT = 9;
/** Seen so often in a row, a failure is none of a guest that still boots, such as a host key that is being made. */
const FAILURES = 3;
/** Prints why sshd cannot start, as it says itself, and exits with 1; with 0 if it may still be starting. */
const WHY = `
bb=/usr/lib/berth/busybox
[ -x /usr/sbin/sshd ] || { echo '/usr/sbin/sshd is missing'; exit 1; }
said=$(/usr/sbin/sshd -t 2>&1) || { echo "$said"; exit 1; }
said=$($bb tail -n 3 ${SSHD_LOG} 2> /dev/null | $bb grep -E '^(error|fatal): ')
case "$said" in *fatal:*) echo "$said"; exit 1 ;; esac
exit 0`;
const WHY_MS = 20_000;
const ADVICE = 'Commands and files work (berth exec), and so does the console (berth console).';

/** Where this host reaches it. */
export interface Sshd {
  readonly host: string;
  readonly port: number;
}

/** The public half of the guest's host key. */
export async function readHostKeys(agent: GuestCommands): Promise<HostKey[]> {
  const text = (await readGuestFile(agent, HOST_KEY, HOST_KEY_MAX_BYTES)).toString('latin1');
  const [type = '', base64 = ''] = text.trim().split(' ');
  if (type !== 'ssh-ed25519' || !/^[A-Za-z0-9+/]{40,200}={0,2}$/.test(base64)) {
    throw new Error(`the guest's ${HOST_KEY} is not an ed25519 public key`);
  }
  const public_key = `${type} ${base64}`;
  return [{ type, fingerprint: fingerprintOf(public_key), public_key }];
}

/** Resolves with null once the guest's network answers at `sshd` and its sshd listens; else with why nobody can log in. */
export async function waitForSshd(
  agent: GuestCommands,
  sshd: Sshd,
  timeout_ms: number,
  signal: AbortSignal,
): Promise<Reason | null> {
  const deadline = performance.now() + timeout_ms;
  for (let failures = 0; ; ) {
    signal.throwIfAborted();
    const patience = Math.min(deadline, performance.now() + LOG_PATIENCE_MS);
    if (await logsThatItListens(agent, patience, signal)) break;
    if ((await knock(sshd, BANNER_TRY_MS)) === 'greeted') return null;
    const why = await whyItFails(agent, signal);
    failures = why === null ? 0 : failures + 1;
    if (why !== null && failures === FAILURES) return sshUnavailable(`cannot start: ${untrustedText(why)}`);
    if (performance.now() >= deadline)
      return sshUnavailable(`did not listen within ${Math.round(timeout_ms / 1000)} s`);
  }
  if (await networkAnswers(sshd, signal)) return null;
  const message = `The guest's network does not answer, although its sshd listens. ${ADVICE}`;
  return { code: 'network_unavailable', message };
}

function sshUnavailable(why: string): Reason {
  return { code: 'ssh_unavailable', message: `sshd in the guest ${why}. ${ADVICE}` };
}

/** In its own words. null: it may still be starting, or nobody can tell. */
async function whyItFails(agent: GuestCommands, signal: AbortSignal): Promise<string | null> {
  const command = { path: '/bin/sh', args: ['-c', WHY], timeout_ms: WHY_MS, signal };
  const ended = await guestExec(agent, command).catch(() => null);
  signal.throwIfAborted();
  if (ended?.exit_code !== 1) return null;
  return ended.stdout.toString('utf8').replace(/[.\s]+$/, '');
}

/** Any answer proves the network: a refusal, or a greeting where the guest's firewall drops what it refuses. */
async function networkAnswers(sshd: Sshd, signal: AbortSignal): Promise<boolean> {
  const deadline = performance.now() + NETWORK_UP_MS;
  while (performance.now() < deadline) {
    signal.throwIfAborted();
    if (isForwarded(sshd)) {
      // QEMU's user network forwards no other port.
      if ((await knock(sshd, BANNER_TRY_MS)) !== 'nothing') return true;
    } else if (await refuses({ host: sshd.host, port: QUIET_PORT }, BANNER_TRY_MS)) return true;
    else if ((await knock(sshd, BANNER_TRY_MS)) === 'greeted') return true;
    await pause(LOG_POLL_MS, signal);
  }
  return false;
}

/** Whether the guest refuses a datagram. The host itself may refuse TCP connections for it (hold-connections.ts). */
function refuses({ host, port }: Sshd, timeout_ms: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = createSocket('udp4');
    const late = setTimeout(() => done(false), timeout_ms);
    const done = (refused: boolean) => {
      clearTimeout(late);
      socket.removeAllListeners().on('error', () => undefined);
      socket.close();
      resolve(refused);
    };
    socket.on('error', (error) => done(errnoOf(error) === 'ECONNREFUSED'));
    socket.connect(port, host, () => socket.send(''));
  });
}

async function logsThatItListens(agent: GuestCommands, until: number, signal: AbortSignal): Promise<boolean> {
  const watch = {
    done: (log: Buffer) => LISTENS.test(log.toString('latin1')),
    ...{ max_bytes: SSHD_LOG_MAX_BYTES, poll_ms: LOG_POLL_MS, until, signal },
  };
  for (;;) {
    if (await watchGuestFile(agent, SSHD_LOG, watch).catch(() => false)) return true;
    if (performance.now() >= until || !(await pause(LOG_POLL_MS, signal))) return false;
  }
}

/** Resolves once an SSH server greets (RFC 4253, section 4.2). */
export async function waitForSsh(sshd: Sshd, timeout_ms: number, signal: AbortSignal): Promise<void> {
  const deadline = performance.now() + timeout_ms;
  let try_ms = BANNER_TRY_MS;
  for (let wait_ms = 10; ; wait_ms = Math.min(200, wait_ms * 1.5)) {
    signal.throwIfAborted();
    const left_ms = deadline - performance.now();
    if (left_ms <= 0) throw new Error(`sshd did not answer within ${Math.round(timeout_ms / 1000)} s`);
    const began_ms = performance.now();
    if ((await knock(sshd, Math.min(left_ms, try_ms))) === 'greeted') return;
    if (performance.now() - began_ms >= try_ms) try_ms = Math.min(BANNER_TRY_MAX_MS, try_ms * 2);
    await pause(wait_ms, signal);
  }
}

/** By QEMU's user network, which answers for the guest. */
function isForwarded({ host }: Sshd): boolean {
  return host === LOOPBACK;
}

/** QEMU's user network accepts every connection, and closes it if the guest refuses it. Without an answer it stays open. */
type PortAnswer = 'greeted' | 'refused' | 'nothing';

function knock(sshd: Sshd, timeout_ms: number): Promise<PortAnswer> {
  return new Promise((resolve) => {
    const socket = connect(sshd);
    let text = '';
    const done = (answer: PortAnswer) => {
      socket.destroy();
      resolve(answer);
    };
    socket.setTimeout(timeout_ms, () => done('nothing'));
    socket.on('error', () => done('nothing'));
    socket.on('end', () => done(text === '' ? 'refused' : 'nothing'));
    socket.on('data', (chunk) => {
      text += chunk.toString('latin1');
      if (text.startsWith('SSH-2.0-')) done('greeted');
      else if (text.length > 1_024) done('nothing');
    });
  });
}

/** Per read; the next read continues. The log is bounded to some MiB (guest/rootfs/usr/lib/berth/bound-ssh-log). */
const MAX_BYTES = 128 * 1024;
/** Different keys between two reports; far more than an instance has. */
const MAX_LOGINS = 1_000;
const CALL_MS = 1_000;
const ACCEPTED = /^Accepted publickey for .* (SHA256:[A-Za-z0-9+/]{43})$/;

type WatchedGuest = Pick<GuestAgent, 'execute' | 'maybe_frozen'>;

/**
 * Which keys were used to log in, from the log of the guest's sshd (`LogLevel VERBOSE`): only sshd knows. Read once a minute and
 * before the guest goes down; three small calls if nobody has logged in. Root in the guest can write anything into that log, so
 * the control plane accepts only keys of the instance.
 *
 * Logins from before this agent adopted the guest are not reported: their time is unknown.
 */
export class LoginWatch {
  readonly #agent: WatchedGuest;
  /** How far the log of this boot was read. null: not yet, and it holds logins from before this agent. */
  #offset: number | null;
  readonly #logins = new Set<string>();
  readonly #sender: BatchSender<typeof BATCHES.logins.item>;

  /** `has_past`: the log may hold logins from before this agent. */
  constructor(agent: WatchedGuest, has_past: boolean, log: Pick<Log, 'warn'>) {
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
