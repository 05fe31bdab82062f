/**
 * Requests to an HTTP port at random moments of stops, suspends, restarts and kills of the agent. With wake none ends in an error,
 * none reaches the guest twice, and no byte of a body is missing. BERTH_TEST_FAULTS=all sends a thousand.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type IncomingMessage, request as sendRequest } from 'node:http';
import { describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { installServer, startServer, startServerAtBoot } from '../support/guest-http-server.ts';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import { seededRandom } from '../support/seeded-random.ts';
import { tries } from '../support/thorough.ts';

const REQUESTS = tries(24, 1_000);
const AT_A_TIME = 4;
const SEED = Number(process.env['BERTH_TEST_SEED'] ?? 1);
const BODY_MAX = 300_000;
/** How often the next disturbance comes after an answer, rather than at any moment. */
const PATIENT = 0.4;

async function ask(port: number, hostname: string, id: string, length: number) {
  const sent = sendRequest({
    ...{ host: '127.0.0.1', port, path: `/${id}`, method: 'POST', agent: false },
    headers: { host: hostname },
  });
  sent.end(Buffer.alloc(length, 'x'));
  const [answer] = (await once(sent, 'response')) as [IncomingMessage];
  return { status: answer.statusCode, text: Buffer.concat(await answer.toArray()).toString() };
}

describe('an HTTP port', { skip: CANNOT_BOOT_GUESTS, timeout: tries(600_000, 7_200_000) }, () => {
  test('answers every request once and whole, whatever happens to its VM', async (t) => {
    const berth = await Installation.start();
    t.after(() => berth.dispose());
    const guest = await GuestInstance.running(berth, 'web', { wake_on_connect: true });
    await installServer(guest);
    await startServerAtBoot(guest);
    await startServer(guest);
    const body = { port: 8080, access: 'public' };
    const { hostname } = await berth.client.expect<{ hostname: string }>(
      201,
      'POST',
      `${guest.path}/ports`,
      body,
    );
    const random = seededRandom(SEED);
    const problems: string[] = [];
    let next = 0;
    let { promise: progress, resolve: answered } = Promise.withResolvers<void>();
    const send = async (id: string, length: number) => {
      const { status, text } = await ask(berth.http_port, hostname, id, length);
      answered();
      if (status !== 200 || text !== `${id} ${length}\n`) problems.push(`${id}: ${status} ${text}`);
    };
    const sender = async () => {
      while (next < REQUESTS) {
        const id = `r${next++}`;
        await send(id, Math.floor(random() * BODY_MAX)).catch((error) => problems.push(`${id}: ${error}`));
        await sleep(random() * 1_500);
      }
    };
    const over = new AbortController();
    const stopped = once(over.signal, 'abort');
    const counts: Record<string, number> = {};
    const count = (what: string) => {
      counts[what] = (counts[what] ?? 0) + 1;
    };
    const disturb = async () => {
      const ways: [string, () => Promise<unknown>][] = [
        ['stop', () => berth.client.request('DELETE', `${guest.path}/vm`)],
        ['suspend', () => berth.client.request('POST', `${guest.path}/vm/suspend`)],
        ['restart', () => berth.client.request('POST', `${guest.path}/vm/restart`)],
        ['kill', () => berth.kill('agent')],
      ];
      while (!over.signal.aborted) {
        const [what, act] = ways[Math.floor(random() * ways.length)] ?? [];
        // What the VM's state does not allow is refused, and something else comes next.
        if (what && act)
          await act().then(
            (done) => count((done as { status?: number } | undefined)?.status === 409 ? 'refused' : what),
            () => count('refused'),
          );
        await sleep(random() * 3_000, undefined, { signal: over.signal }).catch(() => undefined);
        // Requests wait for two minutes at most, so a VM that never gets as far as an answer would prove nothing.
        if (random() < PATIENT) {
          ({ promise: progress, resolve: answered } = Promise.withResolvers<void>());
          await Promise.race([progress, stopped]);
        }
      }
    };
    const disturbing = disturb();
    await Promise.all(Array.from({ length: AT_A_TIME }, sender));
    over.abort();
    await disturbing;
    t.diagnostic(`seed ${SEED}: ${REQUESTS} requests, ${JSON.stringify(counts)}`);
    // The last request woke it, or this connection does.
    const log = (await guest.shAgain('cat /srv/log')).trim().split('\n');
    const often = Array.from({ length: REQUESTS }, (_, at) => `r${at}`).filter(
      (id) => log.filter((each) => each === id).length !== 1,
    );
    assert.deepEqual([problems, often], [[], []]);
  });
});
