/**
 * What another's flush, command and stop take on a host while root of one guest answers its agent's questions with whatever hurts
 * and prints without end, beside the same while that guest idles. Both guests run in both.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import {
  behave,
  endFlood,
  floodConsole,
  HOSTILE_MODES,
  type RootShell,
  turnHostile,
} from '../test/support/hostile-guest.ts';
import type { Api } from './api.ts';
import { type Bench, type BenchContext, type Measured, measured } from './figure.ts';
import { makeKey, type SshKey, ssh } from './ssh.ts';

const WHAT = ['flush', 'exec', 'stop'] as const;
type What = (typeof WHAT)[number];
type Times = Record<What, number[]>;
/** Of each, in one round. */
const REPEATS = 5;
const ASK_MS = 100;

async function started(api: Api, name: string, key: SshKey, signal: AbortSignal) {
  const { id } = await api.createInstance(name);
  await api.startVm(id);
  await api.untilRunning(id);
  const target = await api.ssh(id);
  const sh: RootShell['sh'] = (command, input) =>
    ssh(target, command, { key, signal, ...(input === undefined ? {} : { input }) });
  await api.flush(id);
  return { id, sh };
}

/** Somebody asks for commands and figures of that guest all the time, which is what it answers. */
function keepAsking(api: Api, id: string): () => Promise<void> {
  const enough = new AbortController();
  const asking = (async () => {
    while (!enough.signal.aborted) {
      const exec = { command: ['true'], timeout_seconds: 2 };
      await api.call('POST', `/v1/instances/${id}/vm/exec`, exec).catch(() => undefined);
      await api.call('GET', `/v1/instances/${id}/vm/metrics`).catch(() => undefined);
      await sleep(ASK_MS);
    }
  })();
  return async () => {
    enough.abort();
    await asking;
  };
}

async function timed(work: () => Promise<unknown>): Promise<number> {
  const began = performance.now();
  await work();
  return performance.now() - began;
}

async function measureNeighbour(api: Api, neighbour: RootShell & { id: string }): Promise<Times> {
  const { id } = neighbour;
  const times: Times = { flush: [], exec: [], stop: [] };
  for (let repeat = 0; repeat < REPEATS; repeat++) {
    await neighbour.sh('head -c 4000000 /dev/urandom > /srv/file; sync');
    times.flush.push(await timed(() => api.flush(id)));
    const exec = { command: ['true'] };
    times.exec.push(await timed(() => api.call('POST', `/v1/instances/${id}/vm/exec`, exec)));
  }
  times.stop.push(await timed(() => api.stopVm(id)));
  await api.startVm(id);
  await api.untilRunning(id);
  return times;
}

async function all({ installation: { api }, scratch_dir, runs, signal, say }: BenchContext) {
  const key = await makeKey(scratch_dir);
  await api.addKey('bench-hostile', key.public_key);
  const hostile = await started(api, 'hostile', key, signal);
  const neighbour = await started(api, 'neighbour', key, signal);
  await turnHostile(hostile);
  const beside: Times = { flush: [], exec: [], stop: [] };
  const alone: Times = { flush: [], exec: [], stop: [] };
  for (let number = 0; number <= runs; number++) {
    const mode = HOSTILE_MODES[number % HOSTILE_MODES.length] ?? 'lists';
    await behave(hostile, 'good');
    await endFlood(hostile);
    const idle = await measureNeighbour(api, neighbour);
    await behave(hostile, mode);
    await floodConsole(hostile);
    const enough = keepAsking(api, hostile.id);
    const attacked = await measureNeighbour(api, neighbour).finally(enough);
    for (const what of WHAT) {
      say(`round ${number}, ${mode}: ${what} ${rounded(attacked[what])} ms, alone ${rounded(idle[what])} ms`);
      // The first warms up.
      if (number === 0) continue;
      beside[what].push(...attacked[what]);
      alone[what].push(...idle[what]);
    }
  }
  await api.deleteInstance(hostile.id);
  await api.deleteInstance(neighbour.id);
  return WHAT.map((what) => figure(what, beside[what], alone[what]));
}

function rounded(times: readonly number[]): string {
  return times.map((each) => Math.round(each)).join(' ');
}

function figure(what: What, values: readonly number[], beside_values: readonly number[]): Measured {
  return measured({
    bench: 'hostile-guest',
    figure: what,
    unit: 'ms',
    values,
    beside: 'the same, that guest idle',
    beside_values,
    remark: '',
  });
}

export const hostileGuestBench: Bench = {
  name: 'hostile-guest',
  summary:
    "another's flush, exec and stop while a guest's agent and console attack its host, beside the same in peace",
  run: all,
};
