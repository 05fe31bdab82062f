/** Waits for the banner that an SSH server sends first (RFC 4253, section 4.2). */
import { connect } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

const PATIENCE_MS = 10_000;
const ATTEMPT_MS = 3_000;
const PAUSE_MS = 100;

function sendsBanner(host: string, port: number, signal: AbortSignal): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect({ host, port, signal, timeout: ATTEMPT_MS });
    const end = (sent: boolean) => {
      socket.destroy();
      resolve(sent);
    };
    socket.once('data', (bytes) => end(bytes.subarray(0, 4).toString('latin1') === 'SSH-'));
    for (const event of ['error', 'timeout', 'close'] as const) socket.once(event, () => end(false));
  });
}

/**
 * After a start the route to a VM may appear a moment after the VM. Returns when sshd answers, or after ten seconds: ssh then
 * reports the problem.
 */
export async function waitForBanner(host: string, port: number, signal: AbortSignal): Promise<void> {
  const deadline = performance.now() + PATIENCE_MS;
  while (!signal.aborted && performance.now() < deadline) {
    if (await sendsBanner(host, port, signal)) return;
    await sleep(PAUSE_MS);
  }
}
