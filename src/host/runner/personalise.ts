/**
 * What makes a booted guest a running VM: its agent answers, the instance's keys are in place, its host key is
 * read, and sshd answers where the ingress will dial.
 */
import { connect } from 'node:net';
import type { HostKey } from '../../agent-api/types.ts';
import { pause } from '../../lib/backoff.ts';
import type { GuestAgent } from '../guest/guest-agent.ts';
import { readGuestFile } from '../guest/guest-files.ts';
import { fingerprintOf } from './apply-keys.ts';

const HOST_KEY = '/etc/ssh/ssh_host_ed25519_key.pub';
const HOST_KEY_MAX_BYTES = 1_024;
/** For a greeting; on a busy host it may take long, and each try that is given up has made sshd begin anew. */
const BANNER_TRY_MS = 2_000;
const BANNER_TRY_MAX_MS = 20_000;

/** The public half of the host key that the guest made at its first boot. */
export async function readHostKeys(agent: GuestAgent): Promise<HostKey[]> {
  const text = (await readGuestFile(agent, HOST_KEY, HOST_KEY_MAX_BYTES)).toString('latin1');
  const [type = '', base64 = ''] = text.trim().split(' ');
  if (type !== 'ssh-ed25519' || !/^[A-Za-z0-9+/]{40,200}={0,2}$/.test(base64)) {
    throw new Error(`the guest's ${HOST_KEY} is not an ed25519 public key`);
  }
  const public_key = `${type} ${base64}`;
  return [{ type, fingerprint: fingerprintOf(public_key), public_key }];
}

/** Resolves once an SSH server greets at `127.0.0.1:port` (RFC 4253, section 4.2). */
export async function waitForSsh(port: number, timeout_ms: number, signal: AbortSignal): Promise<void> {
  const deadline = performance.now() + timeout_ms;
  let try_ms = BANNER_TRY_MS;
  for (let wait_ms = 10; ; wait_ms = Math.min(200, wait_ms * 1.5)) {
    signal.throwIfAborted();
    const left_ms = deadline - performance.now();
    if (left_ms <= 0) throw new Error(`sshd did not answer within ${Math.round(timeout_ms / 1000)} s`);
    const began_ms = performance.now();
    if (await greets(port, Math.min(left_ms, try_ms))) return;
    if (performance.now() - began_ms >= try_ms) try_ms = Math.min(BANNER_TRY_MAX_MS, try_ms * 2);
    await pause(wait_ms, signal);
  }
}

function greets(port: number, timeout_ms: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect({ host: '127.0.0.1', port });
    let text = '';
    const done = (answer: boolean) => {
      socket.destroy();
      resolve(answer);
    };
    socket.setTimeout(timeout_ms, () => done(false));
    socket.on('error', () => done(false));
    socket.on('end', () => done(false));
    socket.on('data', (chunk) => {
      text += chunk.toString('latin1');
      if (text.startsWith('SSH-2.0-')) done(true);
      else if (text.length > 1_024) done(false);
    });
  });
}
