/**
 * Measures webhook deliveries a second, compared with a loop of POST requests to the same receiver, with headers and
 * bodies of the same size. Receiver and loop are separate processes. Also measures the delay from an event to its
 * receipt, and the memory that a backlog needs.
 */
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { performance } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';
import { PARALLEL } from '../src/control-plane/webhooks/sender.ts';
import { type Bench, type BenchContext, type Measured, measured, quantile } from './figure.ts';
import { Delivery } from './webhook-delivery.ts';
import { fairness, GOOD } from './webhook-fairness.ts';
import { LoopProcess, ReceiverProcess } from './webhook-parties.ts';

const NAME = 'webhooks';
const ENDPOINTS = [1, 10, 100] as const;
/** Deliveries of one round, over all endpoints. */
const DELIVERIES = 5_000;
const BACKLOG = 100_000;
const BACKLOG_ENDPOINTS = 10;
const AT_ONCE = 500;
const IDLE_EVENTS = 200;
const LOAD_SECONDS = 10;
const LOAD_TICK_MS = 20;

interface Stage extends BenchContext {
  readonly delivery: Delivery;
  readonly receiver: ReceiverProcess;
  readonly bare: LoopProcess;
}

/** Like those of a delivery. */
const HEADERS = {
  'content-type': 'application/json',
  'user-agent': 'Berth-Webhooks/1',
  'webhook-id': `evt_${'0'.repeat(26)}`,
  'webhook-timestamp': '1767225600',
  'webhook-signature': `v1,${'A'.repeat(43)}=`,
};
const BODY = JSON.stringify({
  type: 'vm.started',
  timestamp: new Date().toISOString(),
  data: 'x'.repeat(720),
});

async function run(context: BenchContext): Promise<readonly Measured[]> {
  await using cleanup = new AsyncDisposableStack();
  const data_dir = join(context.scratch_dir, 'data');
  cleanup.defer(() => rm(data_dir, { recursive: true, force: true, maxRetries: 5 }));
  const delivery = await Delivery.open(data_dir);
  cleanup.defer(() => delivery.close());
  const receiver = await ReceiverProcess.start(Math.max(GOOD, ...ENDPOINTS));
  cleanup.defer(() => receiver.end());
  const bare = new LoopProcess();
  cleanup.defer(() => bare.end());
  const stage: Stage = { ...context, delivery, receiver, bare };
  const results: Measured[] = [];
  // First, before other figures grow the heap.
  const waiting = await backlogs(stage);
  await delivery.tidy();
  await warmUp(stage);
  delivery.start();
  for (const endpoints of ENDPOINTS) results.push(await throughput(stage, endpoints));
  const [first] = results;
  results.push(...(await idleDelay(stage)));
  results.push(...(await delayUnderLoad(stage, (first?.figure.value ?? 0) / 2)));
  results.push(...(await fairness(stage)));
  results.push(waiting);
  return results;
}

/** The loop sends as many requests as a backlog has deliveries. The backlog has compiled the senders' code before. */
async function warmUp({ bare, receiver, signal }: Stage): Promise<void> {
  const origins = receiver.origins.slice(0, BACKLOG_ENDPOINTS);
  const in_flight = PARALLEL.in_order * BACKLOG_ENDPOINTS;
  const loop = { origins, requests: BACKLOG, in_flight, headers: HEADERS, body: BODY };
  await receiver.count(BACKLOG, false, signal, async () => void (await bare.post(loop)));
}

/** Deliveries a second, and requests a second of the loop with as many in flight. */
async function throughput(stage: Stage, endpoints: number): Promise<Measured> {
  const { delivery, receiver, bare, runs, signal, say } = stage;
  const origins = receiver.origins.slice(0, endpoints);
  const org_id = await delivery.organisation(origins);
  const in_flight = PARALLEL.in_order * endpoints;
  const loop = { origins, requests: DELIVERIES, in_flight, headers: HEADERS, body: BODY };
  const values: number[] = [];
  const beside_values: number[] = [];
  for (let round = 0; round <= runs; round++) {
    signal.throwIfAborted();
    const events = DELIVERIES / endpoints;
    const { per_second: berth, ids } = await perSecond(stage, async (begun) => {
      await delivery.happen(org_id, events);
      begun();
    });
    if (ids !== events) throw new Error(`of ${events} events ${ids} came: one came twice in another's place`);
    const { per_second: beside } = await perSecond(stage, async (begun) => {
      begun();
      await bare.post(loop);
    });
    say(`${endpoints} endpoints: ${Math.round(berth)} deliveries a second, the loop ${Math.round(beside)}`);
    if (round === 0) continue;
    values.push(berth);
    beside_values.push(beside);
  }
  return measured({
    bench: NAME,
    figure: `deliveries_${endpoints}`,
    unit: '1/s',
    values,
    beside: `a loop of undici posts, ${in_flight} at a time`,
    beside_values,
    remark: 'more is better',
  });
}

/** `send` starts the clock: after the commit of the events, or before the first post. */
async function perSecond(
  { receiver, signal }: Stage,
  send: (begun: () => void) => Promise<void>,
): Promise<{ readonly per_second: number; readonly ids: number }> {
  let began_ms = 0;
  const begun = () => {
    began_ms = Date.now();
  };
  const { last_ms, ids } = await receiver.count(DELIVERIES, false, signal, () => send(begun));
  return { per_second: (DELIVERIES * 1000) / (last_ms - began_ms), ids };
}

/** One event at a time, from the event's timestamp, the beginning of its transaction. */
async function idleDelay(stage: Stage): Promise<Measured[]> {
  const { delivery, receiver, bare, runs, signal, say } = stage;
  const origins = receiver.origins.slice(0, 1);
  const org_id = await delivery.organisation(origins);
  const delays: Percentiles[] = [];
  const posts: Percentiles[] = [];
  for (let round = 0; round <= runs; round++) {
    const delays_ms: number[] = [];
    const posts_ms: number[] = [];
    for (let n = 0; n < IDLE_EVENTS; n++) {
      const counted = await receiver.count(1, true, signal, () => delivery.happen(org_id, 1));
      delays_ms.push(...counted.delays_ms);
      await receiver.count(1, false, signal, async () => {
        const one = { origins, requests: 1, in_flight: 1, headers: HEADERS, body: BODY };
        posts_ms.push(...(await bare.post(one, true)));
      });
    }
    if (round === 0) continue;
    delays.push(percentilesOf(delays_ms));
    posts.push(percentilesOf(posts_ms));
  }
  say(`idle: ${JSON.stringify(delays)}`);
  return percentiles('idle_delay', delays, posts, 'one post of the loop, with its connection');
}

interface Percentiles {
  readonly p50: number;
  readonly p99: number;
}

function percentilesOf(values: readonly number[]): Percentiles {
  return { p50: quantile(values, 0.5), p99: quantile(values, 0.99) };
}

function percentiles(
  figure: string,
  all: readonly Percentiles[],
  beside_all: readonly Percentiles[],
  beside: string,
): Measured[] {
  return (['p50', 'p99'] as const).map((each) =>
    measured({
      bench: NAME,
      figure: `${figure}_${each}`,
      unit: 'ms',
      values: all.map((one) => one[each]),
      beside,
      beside_values: beside_all.map((one) => one[each]),
      remark: '',
    }),
  );
}

/**
 * A steady stream of events to one endpoint, one transaction each tick, beside the loop at the same pace. The delay of an
 * event is from the beginning of its tick; that of a post from the message to the loop's process.
 */
async function delayUnderLoad(stage: Stage, rate_per_second: number): Promise<Measured[]> {
  const { delivery, receiver, bare, runs, signal, say } = stage;
  const origins = receiver.origins.slice(0, 1);
  const org_id = await delivery.organisation(origins);
  const a_tick = Math.max(1, Math.round((rate_per_second * LOAD_TICK_MS) / 1000));
  const ticks = (LOAD_SECONDS * 1000) / LOAD_TICK_MS;
  const delays: Percentiles[] = [];
  const posts: Percentiles[] = [];
  for (let round = 0; round <= Math.min(runs, 3); round++) {
    const { delays_ms } = await receiver.count(a_tick * ticks, true, signal, () =>
      paced(ticks, () => delivery.happen(org_id, a_tick)),
    );
    const posts_ms: number[] = [];
    const loop = {
      origins,
      requests: a_tick,
      in_flight: PARALLEL.in_order,
      headers: HEADERS,
      body: BODY,
    };
    const post = async () => void posts_ms.push(...(await bare.post(loop)));
    await receiver.count(a_tick * ticks, false, signal, () => paced(ticks, post));
    say(`at ${a_tick * (1000 / LOAD_TICK_MS)} a second: ${JSON.stringify(percentilesOf(delays_ms))}`);
    if (round === 0) continue;
    delays.push(percentilesOf(delays_ms));
    posts.push(percentilesOf(posts_ms));
  }
  return percentiles('half_load_delay', delays, posts, `the loop, ${a_tick} posts every ${LOAD_TICK_MS} ms`);
}

/** Starts `work` at each tick; one that takes longer than its tick does not delay the next. */
async function paced(ticks: number, work: () => Promise<void>): Promise<void> {
  const began_ms = performance.now();
  const all: Promise<void>[] = [];
  for (let tick = 0; tick < ticks; tick++) {
    await sleep(Math.max(0, began_ms + tick * LOAD_TICK_MS - performance.now()));
    all.push(work());
  }
  await Promise.all(all);
}

const MIB = 1024 * 1024;

/** Compares a backlog with one twice as long: constant memory needs no more for it. The first one warms the process up. */
async function backlogs(stage: Stage): Promise<Measured> {
  const single = await backlog(stage, BACKLOG);
  const double = await backlog(stage, 2 * BACKLOG);
  const seconds = ({ took_ms }: Drained) => Math.round(took_ms / 1000);
  return measured({
    bench: NAME,
    figure: 'backlog_rss',
    unit: 'MiB',
    values: [double.most_mib],
    beside: `the peak while ${BACKLOG} drained before`,
    beside_values: [single.most_mib],
    remark: `${BACKLOG} drained in ${seconds(single)} s, ${2 * BACKLOG} in ${seconds(double)}`,
  });
}

interface Drained {
  /** Of this process, while they drained. */
  readonly most_mib: number;
  readonly took_ms: number;
}

async function backlog(stage: Stage, deliveries: number): Promise<Drained> {
  const { delivery, receiver, signal, say } = stage;
  const origins = receiver.origins.slice(0, BACKLOG_ENDPOINTS);
  const org_id = await delivery.organisation(origins);
  // In small transactions: large ones would need memory that the figure would include.
  for (let made = 0; made < deliveries; made += AT_ONCE * BACKLOG_ENDPOINTS)
    await delivery.happen(org_id, AT_ONCE);
  await delivery.fanOut();
  say(`${deliveries} deliveries wait`);
  const began_ms = Date.now();
  let most_mib = 0;
  const sample = () => {
    most_mib = Math.max(most_mib, process.memoryUsage.rss() / MIB);
  };
  const timer = setInterval(sample, 100);
  const counted = receiver.count(deliveries, false, signal, async () => delivery.start());
  const { last_ms } = await counted.finally(() => clearInterval(timer));
  await delivery.stop();
  return { most_mib, took_ms: last_ms - began_ms };
}

export const webhooksBench: Bench = {
  name: NAME,
  summary: 'webhook deliveries a second and their delay, beside a loop of posts; memory under a backlog',
  run,
};
