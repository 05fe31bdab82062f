/**
 * What makes a booted guest a running VM: its agent answers, the instance's keys are in place, its sshd listens, its host key
 * is read, and its network answers where the ingress will dial.
 *
 * A greeting says the last too, but each costs the guest a process of sshd's own, which under emulation is an eighth of a
 * start from a template. So a connection that the guest refuses is as good: what has refused it is the guest's own network.
 */
import { connect } from 'node:net';
import type { HostKey } from '../../agent-api/types.ts';
import { pause } from '../../lib/backoff.ts';
import { GuestAgentTimeoutError } from '../guest/agent-errors.ts';
import type { GuestAgent } from '../guest/guest-agent.ts';
import { guestExec, readGuestFile } from '../guest/guest-files.ts';
import { fingerprintOf } from './apply-keys.ts';

const HOST_KEY = '/etc/ssh/ssh_host_ed25519_key.pub';
const HOST_KEY_MAX_BYTES = 1_024;
/** sh, in the guest: waits until something listens at port 22, and prints the host key. Reads are the shell's own, and cheap. */
const AWAIT_SSHD = `
listens() {
  while read -r _ local _ state _; do
    case "$local $state" in *:0016' '0A) return 0 ;; esac
  done < "$1"
  return 1
} 2> /dev/null
until listens /proc/net/tcp || listens /proc/net/tcp6; do /usr/lib/berth/busybox usleep 50000; done
read -r key < "$0"
echo "$key"
`;
/** For a greeting; on a busy host it may take long, and each try that is given up has made sshd begin anew. */
const BANNER_TRY_MS = 2_000;
const BANNER_TRY_MAX_MS = 20_000;

/** The public half of the guest's host key. */
export async function readHostKeys(agent: GuestAgent): Promise<HostKey[]> {
  return hostKeysOf(await readGuestFile(agent, HOST_KEY, HOST_KEY_MAX_BYTES));
}

/** The same, once its sshd listens. */
export async function waitForSshd(
  agent: GuestAgent,
  timeout_ms: number,
  signal: AbortSignal,
): Promise<HostKey[]> {
  const { stdout } = await guestExec(agent, {
    path: '/usr/lib/berth/busybox',
    args: ['sh', '-c', AWAIT_SSHD, HOST_KEY],
    ...{ timeout_ms, signal, max_output_bytes: HOST_KEY_MAX_BYTES },
  }).catch((error: unknown) => {
    if (!(error instanceof GuestAgentTimeoutError)) throw error;
    throw new Error(`sshd did not listen within ${Math.round(timeout_ms / 1000)} s`, { cause: error });
  });
  return hostKeysOf(stdout);
}

function hostKeysOf(said: Buffer): HostKey[] {
  const text = said.toString('latin1');
  const [type = '', base64 = ''] = text.trim().split(' ');
  if (type !== 'ssh-ed25519' || !/^[A-Za-z0-9+/]{40,200}={0,2}$/.test(base64)) {
    throw new Error(`the guest's ${HOST_KEY} is not an ed25519 public key`);
  }
  const public_key = `${type} ${base64}`;
  return [{ type, fingerprint: fingerprintOf(public_key), public_key }];
}

/** Resolves once an SSH server greets at `127.0.0.1:port` (RFC 4253, section 4.2). */
export function waitForSsh(port: number, timeout_ms: number, signal: AbortSignal): Promise<void> {
  return waitForPort(port, ['greeted'], { timeout_ms, signal });
}

/** Resolves once the guest answers at `127.0.0.1:port`, be it that nothing listens there yet. */
export function waitForNetwork(port: number, timeout_ms: number, signal: AbortSignal): Promise<void> {
  return waitForPort(port, ['greeted', 'refused'], { timeout_ms, signal });
}

async function waitForPort(
  port: number,
  wanted: readonly PortAnswer[],
  { timeout_ms, signal }: { readonly timeout_ms: number; readonly signal: AbortSignal },
): Promise<void> {
  const deadline = performance.now() + timeout_ms;
  let try_ms = BANNER_TRY_MS;
  for (let wait_ms = 10; ; wait_ms = Math.min(200, wait_ms * 1.5)) {
    signal.throwIfAborted();
    const left_ms = deadline - performance.now();
    if (left_ms <= 0) throw new Error(`sshd did not answer within ${Math.round(timeout_ms / 1000)} s`);
    const began_ms = performance.now();
    if (wanted.includes(await knock(port, Math.min(left_ms, try_ms)))) return;
    if (performance.now() - began_ms >= try_ms) try_ms = Math.min(BANNER_TRY_MAX_MS, try_ms * 2);
    await pause(wait_ms, signal);
  }
}

/** QEMU's network accepts each connection, and closes it when the guest refuses it; without an answer it stays open. */
type PortAnswer = 'greeted' | 'refused' | 'nothing';

function knock(port: number, timeout_ms: number): Promise<PortAnswer> {
  return new Promise((resolve) => {
    const socket = connect({ host: '127.0.0.1', port });
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
