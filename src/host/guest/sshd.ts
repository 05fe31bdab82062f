/**
 * The guest's sshd: its host key, and waiting until it listens and the guest's network answers.
 *
 * An SSH greeting proves both, but costs the guest an sshd process, which under emulation is an eighth of a start from a template.
 * So sshd's log shows that it listens, and a connection that the guest's network refuses shows that the network answers.
 */
import { connect } from 'node:net';
import type { HostKey } from '../../agent-api/types.ts';
import { pause } from '../../lib/backoff.ts';
import { fingerprintOf } from '../../lib/ssh-fingerprint.ts';
import type { GuestAgent } from './guest-agent.ts';
import { readGuestFile, watchGuestFile } from './guest-files.ts';

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

/** Where this host reaches it. */
export interface Sshd {
  readonly host: string;
  readonly port: number;
}

/** The public half of the guest's host key. */
export async function readHostKeys(agent: GuestAgent): Promise<HostKey[]> {
  const text = (await readGuestFile(agent, HOST_KEY, HOST_KEY_MAX_BYTES)).toString('latin1');
  const [type = '', base64 = ''] = text.trim().split(' ');
  if (type !== 'ssh-ed25519' || !/^[A-Za-z0-9+/]{40,200}={0,2}$/.test(base64)) {
    throw new Error(`the guest's ${HOST_KEY} is not an ed25519 public key`);
  }
  const public_key = `${type} ${base64}`;
  return [{ type, fingerprint: fingerprintOf(public_key), public_key }];
}

/** Resolves once the guest's network answers at `sshd` and its sshd listens. */
export async function waitForSshd(
  agent: GuestAgent,
  sshd: Sshd,
  timeout_ms: number,
  signal: AbortSignal,
): Promise<void> {
  const deadline = performance.now() + timeout_ms;
  // A guest with a TAP device has its network before it starts sshd.
  let answer = isForwarded(sshd)
    ? await waitForPort(sshd, ['greeted', 'refused'], { timeout_ms, signal })
    : 'refused';
  while (answer !== 'greeted') {
    signal.throwIfAborted();
    if (performance.now() >= deadline) throw notInTime(timeout_ms);
    const patience = Math.min(deadline, performance.now() + LOG_PATIENCE_MS);
    if (await logsThatItListens(agent, patience, signal)) return;
    answer = await knock(sshd, BANNER_TRY_MS);
  }
}

async function logsThatItListens(agent: GuestAgent, until: number, signal: AbortSignal): Promise<boolean> {
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
  await waitForPort(sshd, ['greeted'], { timeout_ms, signal });
}

async function waitForPort(
  sshd: Sshd,
  wanted: readonly PortAnswer[],
  { timeout_ms, signal }: { readonly timeout_ms: number; readonly signal: AbortSignal },
): Promise<PortAnswer> {
  const deadline = performance.now() + timeout_ms;
  let try_ms = BANNER_TRY_MS;
  for (let wait_ms = 10; ; wait_ms = Math.min(200, wait_ms * 1.5)) {
    signal.throwIfAborted();
    const left_ms = deadline - performance.now();
    if (left_ms <= 0) throw notInTime(timeout_ms);
    const began_ms = performance.now();
    const answer = await knock(sshd, Math.min(left_ms, try_ms));
    if (wanted.includes(answer)) return answer;
    if (performance.now() - began_ms >= try_ms) try_ms = Math.min(BANNER_TRY_MAX_MS, try_ms * 2);
    await pause(wait_ms, signal);
  }
}

function notInTime(timeout_ms: number): Error {
  return new Error(`sshd did not answer within ${Math.round(timeout_ms / 1000)} s`);
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
