/**
 * Measures how much bad receivers of webhooks delay the deliveries to 200 good ones. Compared with the 200 good
 * receivers alone. A bad receiver hangs, answers slowly, or refuses connections.
 */
import { createServer, type RequestListener, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { freeLoopbackPort } from '../src/host/qemu/qemu-process.ts';
import { type BenchContext, type Measured, measured, quantile } from './figure.ts';
import type { Delivery } from './webhook-delivery.ts';
import type { ReceiverProcess } from './webhook-parties.ts';

export const GOOD = 200;
const BAD_OF_EACH = 3;
/** Each event goes to every receiver. */
const EVENTS = 20;
const EVERY_MS = 1_000;

export interface FairnessStage extends BenchContext {
  readonly delivery: Delivery;
  /** Listens on {@link GOOD} addresses at least. */
  readonly receiver: ReceiverProcess;
}

/** From an event's timestamp to its receipt, over all good receivers. */
export async function fairness(stage: FairnessStage): Promise<Measured[]> {
  const { delivery, receiver, runs, say } = stage;
  const good = receiver.origins.slice(0, GOOD);
  await using bad = await badReceivers();
  const rounds: { readonly alone: readonly number[]; readonly beside: readonly number[] }[] = [];
  for (let round = 0; round <= Math.min(runs, 3); round++) {
    const alone = await delays(stage, good);
    const org_id = await delivery.organisation([...bad.origins, ...good]);
    const beside = await delays(stage, good, org_id);
    await delivery.removeWebhooks(org_id);
    say(`${GOOD} good: p99 ${quantile(alone, 0.99)} ms, beside the bad ${quantile(beside, 0.99)} ms`);
    if (round > 0) rounds.push({ alone, beside });
  }
  return ([0.5, 0.99] as const).map((q) =>
    measured({
      bench: 'webhooks',
      figure: `good_beside_bad_p${q * 100}`,
      unit: 'ms',
      values: rounds.map((each) => quantile(each.beside, q)),
      beside: `the same ${GOOD} receivers alone`,
      beside_values: rounds.map((each) => quantile(each.alone, q)),
      remark: '',
    }),
  );
}

async function delays(
  { delivery, receiver, signal }: FairnessStage,
  good: readonly string[],
  given?: Awaited<ReturnType<Delivery['organisation']>>,
): Promise<readonly number[]> {
  const org_id = given ?? (await delivery.organisation(good));
  const { delays_ms } = await receiver.count(EVENTS * good.length, true, signal, async () => {
    for (let n = 0; n < EVENTS; n++) {
      await delivery.happen(org_id, 1);
      await sleep(EVERY_MS);
    }
  });
  return delays_ms;
}

interface Bad extends AsyncDisposable {
  readonly origins: readonly string[];
}

/** Some do not answer, some answer a byte a second, some refuse the connection. */
async function badReceivers(): Promise<Bad> {
  const dribble: RequestListener = (_, response) => {
    response.writeHead(200);
    const timer = setInterval(() => response.write('.'), 1_000);
    response.once('close', () => clearInterval(timer));
  };
  const servers: Server[] = [];
  const origins: string[] = [];
  const listen = async (behaves: RequestListener) => {
    const server = createServer(behaves);
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    servers.push(server);
    return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  };
  for (let nth = 0; nth < BAD_OF_EACH; nth++) {
    origins.push(
      await listen(() => undefined),
      await listen(dribble),
      `http://127.0.0.1:${await freeLoopbackPort()}`,
    );
  }
  const end = async () => {
    for (const server of servers) {
      server.closeAllConnections();
      server.close();
    }
  };
  return { origins, [Symbol.asyncDispose]: end };
}
