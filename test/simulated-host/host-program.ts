/**
 * The program of simulated hosts: `host-program.ts SOCKET [BOOT_MS]`. It reads host tokens from stdin, one a line, and
 * connects a simulated host for each token to the control plane behind the socket. After an empty line it prints a line
 * when all of them are connected. The program ends with its stdin.
 */
import { createInterface } from 'node:readline';
import { ControlPlaneClient } from '../../src/protocol/client.ts';
import { createLog } from '../../src/shared/log.ts';
import { pause } from '../../src/shared/retry.ts';
import { SimulatedHost } from './simulated-host.ts';

const RETRY_MS = 200;

const [socket = '', boot_ms = '0'] = process.argv.slice(2);
const log = createLog('simulated-host', 'warn');
const hosts: SimulatedHost[] = [];

async function connected(host: SimulatedHost): Promise<void> {
  for (;;) {
    try {
      return await host.connect();
    } catch (error) {
      // The control plane may just be starting.
      log.debug({ err: error }, 'not yet');
      await pause(RETRY_MS);
    }
  }
}

const lines = createInterface({ input: process.stdin });
lines.on('close', () => process.exit(0));
for await (const line of lines) {
  if (line === '') {
    await Promise.all(hosts.map(connected));
    const { length } = hosts;
    process.stdout.write(
      `${length === 1 ? '1 simulated host is' : `${length} simulated hosts are`} connected\n`,
    );
  } else {
    const client = new ControlPlaneClient({ address: `unix:${socket}`, token: line });
    hosts.push(new SimulatedHost({ client, boot_ms: Number(boot_ms), log }));
  }
}
