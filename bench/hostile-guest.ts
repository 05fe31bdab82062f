/**
 * Measures how much a hostile guest slows another guest of its host: the time of the other guest's start, flush,
 * command, key revocation and stop. Meanwhile root of the hostile guest sends malicious replies as guest agent, and
 * floods the console. Compared with the same while the hostile guest only computes, because every guest may use its
 * CPU.
 */
import { mkdtemp } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { present } from '../src/shared/assert.ts';
import {
  behave,
  endFlood,
  endWork,
  floodConsole,
  HOSTILE_MODES,
  type RootShell,
  turnHostile,
  workHard,
} from '../test/support/hostile-guest.ts';
import type { Api } from './api.ts';
import { type Bench, type BenchContext, type Measured, measured } from './figure.ts';
import { makeKey, type SshKey, ssh } from './ssh.ts';

const WHAT = ['start', 'flush', 'exec', 'revoke', 'stop'] as const;
type What = (typeof WHAT)[number];
type Times = Record<What, number[]>;
const noTimes = (): Times => ({ start: [], flush: [], exec: [], revoke: [], stop: [] });
/** How often each operation runs in a round. */
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

/** Requests commands and metrics of the hostile guest all the time, so that it has something to reply to. */
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

/** The time from the request that removes a key from the instance's set to the end of an open connection with that key. */
async function revocation(api: Api, { id, sh, second, keys }: Neighbour): Promise<number> {
  const set = (ssh_key_ids: readonly string[]) =>
    api.call('PUT', `/v1/instances/${id}/ssh-keys`, { ssh_key_ids });
  await set(keys);
  // A file shows that the session is open. The end of the connection is not its success.
  const open = second('touch /run/open; sleep 600').catch(() => undefined);
  await sh('until [ -e /run/open ]; do sleep 0.05; done; rm /run/open');
  return timed(async () => {
    await set(keys.slice(0, 1));
    await open;
  });
}

interface Neighbour extends RootShell {
  readonly id: string;
  /** The session with the key that is removed. */
  readonly second: RootShell['sh'];
  readonly keys: readonly string[];
}

async function measureNeighbour(api: Api, neighbour: Neighbour): Promise<Times> {
  const { id } = neighbour;
  const times = noTimes();
  for (let repeat = 0; repeat < REPEATS; repeat++) {
    await neighbour.sh('head -c 4000000 /dev/urandom > /srv/file; sync');
    times.flush.push(await timed(() => api.flush(id)));
    const exec = { command: ['true'] };
    times.exec.push(await timed(() => api.call('POST', `/v1/instances/${id}/vm/exec`, exec)));
  }
  times.revoke.push(await revocation(api, neighbour));
  times.stop.push(await timed(() => api.stopVm(id)));
  times.start.push(
    await timed(async () => {
      await api.startVm(id);
      await api.untilRunning(id);
    }),
  );
  return times;
}

async function all({ installation: { api }, scratch_dir, runs, signal, say }: BenchContext) {
  const key = await makeKey(scratch_dir);
  await api.addKey('bench-hostile', key.public_key);
  const hostile = await started(api, 'hostile', key, signal);
  const second = await makeKey(await mkdtemp(join(scratch_dir, 'second-')));
  await api.addKey('bench-neighbour', second.public_key);
  const { data } = await api.call<{ data: { id: string; name: string }[] }>('GET', '/v1/me/ssh-keys');
  const idOf = (name: string) => present(data.find((each) => each.name === name)?.id, name);
  const neighbour: Neighbour = {
    ...(await started(api, 'neighbour', key, signal)),
    keys: [idOf('bench-hostile'), idOf('bench-neighbour')],
    second: async (command) => ssh(await api.ssh(neighbour.id), command, { key: second, signal }),
  };
  await turnHostile(hostile);
  const attacked = noTimes();
  const in_peace = noTimes();
  for (let number = 0; number <= runs; number++) {
    const mode = HOSTILE_MODES[number % HOSTILE_MODES.length] ?? 'lists';
    await behave(hostile, 'good');
    await endFlood(hostile);
    await workHard(hostile);
    const fair = await measureNeighbour(api, neighbour);
    await endWork(hostile);
    await behave(hostile, mode);
    await floodConsole(hostile);
    const enough = keepAsking(api, hostile.id);
    const now = await measureNeighbour(api, neighbour).finally(enough);
    for (const what of WHAT) {
      say(
        `round ${number}, ${mode}: ${what} ${rounded(now[what])} ms, beside a guest that computes ${rounded(fair[what])} ms`,
      );
      // The first warms up.
      if (number === 0) continue;
      attacked[what].push(...now[what]);
      in_peace[what].push(...fair[what]);
    }
  }
  await api.deleteInstance(hostile.id);
  await api.deleteInstance(neighbour.id);
  return WHAT.map((what) => figure(what, attacked[what], in_peace[what]));
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
    beside: 'the same while that guest computes',
    beside_values,
    remark: '',
  });
}

export const hostileGuestBench: Bench = {
  name: 'hostile-guest',
  summary:
    "another's start, flush, exec, key revocation and stop while a guest's agent and console attack its host, beside the same in peace",
  run: all,
};
