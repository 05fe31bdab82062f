/**
 * Requests to an HTTP port at random moments of stops, suspends, restarts and kills of the agent. With wake none ends in an error,
 * none reaches the guest twice, and no byte of a body is missing. BERTH_TEST_FAULTS=all sends a thousand; BERTH_TEST_REQUESTS and
 * BERTH_TEST_SEED choose another number and other moments.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { Agent, type IncomingMessage, request as sendRequest } from 'node:http';
import { describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { installServer, startServer, startServerAtBoot } from '../support/guest-http-server.ts';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import { seededRandom } from '../support/seeded-random.ts';
import { tries } from '../support/thorough.ts';

const REQUESTS = Number(process.env['BERTH_TEST_REQUESTS'] ?? tries(24, 1_000));
const AT_A_TIME = 16;
const SEED = Number(process.env['BERTH_TEST_SEED'] ?? 1);
const BODY_MAX = 300_000;
/** Between two requests of one sender, and between two disturbances: at most, and at random. */
const REQUEST_PAUSE_MS = 1_500;
const DISTURBANCE_PAUSE_MS = 3_000;
/** Of a body that comes in two parts. A VM waits for requests under way for 2 s. */
const BODY_PAUSE_MS = 500;
/** A request waits for two minutes at most: a VM that is never left alone for so long proves nothing. */
const STARVING_MS = 30_000;

interface Asked {
  readonly port: number;
  readonly hostname: string;
  readonly id: string;
  readonly body: Buffer;
  /** How many bytes come before a pause of `pause_ms`. */
  readonly first: number;
  readonly pause_ms: number;
  readonly agent: Agent | false;
}

async function ask({ port, hostname, id, body, first, pause_ms, agent }: Asked) {
  const sent = sendRequest({
    ...{ host: '127.0.0.1', port, path: `/${id}`, method: 'PUT', agent },
    headers: { host: hostname, 'content-length': body.length },
  });
  const answered = once(sent, 'response') as Promise<[IncomingMessage]>;
  sent.write(body.subarray(0, first));
  await Promise.race([sleep(pause_ms), answered]);
  sent.end(body.subarray(first));
  const [answer] = await answered;
  return { status: answer.statusCode, bytes: Buffer.concat(await answer.toArray()) };
}

/** What happened, by name, and how often. */
class Tally {
  readonly counts: Record<string, number> = {};
  readonly problems: string[] = [];
  answered_ms = performance.now();

  count(what: string): void {
    this.counts[what] = (this.counts[what] ?? 0) + 1;
  }
}

/** Sends {@link REQUESTS}, and resolves when all are answered. */
async function sendAll(to: { port: number; hostname: string }, random: () => number, tally: Tally) {
  const kept = new Agent({ keepAlive: true });
  const send = async (id: string) => {
    const body = randomBytes(Math.floor(random() * BODY_MAX));
    const slowly = random() < 0.3;
    const first = slowly ? Math.floor(random() * body.length) : body.length;
    const pause_ms = slowly ? random() * BODY_PAUSE_MS : 0;
    const agent = random() < 0.5 && kept;
    const began_ms = performance.now();
    try {
      const { status, bytes } = await ask({ ...to, id, body, first, pause_ms, agent });
      if (status !== 200) tally.problems.push(`${id}: ${status} ${bytes}`);
      else if (!bytes.equals(body)) tally.problems.push(`${id}: ${bytes.length} of ${body.length} bytes`);
    } catch (error) {
      tally.problems.push(`${id}: ${error}`);
    }
    tally.answered_ms = performance.now();
    if (tally.answered_ms - began_ms - pause_ms > 1_000) tally.count('waited for over a second');
  };
  let next = 0;
  const sender = async () => {
    while (next < REQUESTS) {
      await send(`r${next++}`);
      await sleep(random() * REQUEST_PAUSE_MS);
    }
  };
  await Promise.all(Array.from({ length: AT_A_TIME }, sender));
  kept.destroy();
}

/** Until `signal` aborts. */
async function disturb(guest: GuestInstance, random: () => number, tally: Tally, signal: AbortSignal) {
  const { path, installation } = guest;
  const ways: [string, () => Promise<unknown>][] = [
    ['stop', () => installation.client.request('DELETE', `${path}/vm`)],
    ['suspend', () => installation.client.request('POST', `${path}/vm/suspend`)],
    ['restart', () => installation.client.request('POST', `${path}/vm/restart`)],
    ['kill of the agent', () => installation.kill('agent')],
  ];
  while (!signal.aborted) {
    const [what = '', act] = ways[Math.floor(random() * ways.length)] ?? [];
    // What the VM's state does not allow is refused, and something else comes next. The agent may be dead already.
    await act?.().then(
      (done) => tally.count((done as { status?: number } | undefined)?.status === 409 ? 'refused' : what),
      () => tally.count(`${what} in vain`),
    );
    do await sleep(random() * DISTURBANCE_PAUSE_MS, undefined, { signal }).catch(() => undefined);
    while (performance.now() - tally.answered_ms > STARVING_MS && !signal.aborted);
  }
}

describe('an HTTP port', { skip: CANNOT_BOOT_GUESTS, timeout: tries(900_000, 7_200_000) }, () => {
  test('answers every request once and whole, whatever happens to its VM', async (t) => {
    const berth = await Installation.start();
    t.after(() => berth.dispose());
    const guest = await GuestInstance.running(berth, 'web', { wake_on_connect: true });
    await installServer(guest);
    await startServerAtBoot(guest);
    await startServer(guest);
    const published = { port: 8080, access: 'public' };
    const { hostname } = await berth.client.expect<{ hostname: string }>(
      201,
      'POST',
      `${guest.path}/ports`,
      published,
    );
    const random = seededRandom(SEED);
    const tally = new Tally();
    const over = new AbortController();
    const disturbing = disturb(guest, random, tally, over.signal);
    await sendAll({ port: berth.http_port, hostname }, random, tally);
    over.abort();
    await disturbing;
    const { state, boot } = await guest.vm();
    t.diagnostic(
      `seed ${SEED}: ${REQUESTS} requests, ${JSON.stringify(tally.counts)}, boot ${boot}, ${state}`,
    );
    for (const problem of tally.problems) t.diagnostic(problem);
    // The last request woke it, or this connection does.
    const log = (await guest.shAgain('cat /srv/log')).trim().split('\n');
    const often = Array.from({ length: REQUESTS }, (_, at) => `r${at}`).flatMap((id) => {
      const times = log.filter((each) => each === id).length;
      return times === 1 ? [] : [`${id}: ${times} times`];
    });
    assert.deepEqual([tally.problems, often], [[], []]);
  });
});
