/**
 * Rounds of chance, as many as fit: node test/fault/rounds.ts [SECONDS [SEED]]. Each lets the guest write, asks for
 * something, kills a process or two at a random moment, and then holds the disk against what was synced. Not a part of
 * `npm test`; a failure tells the seed that repeats its choices (the moments are the machine's own).
 */
import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { isAlive, killProcess } from '../../src/host/vm/process-identity.ts';
import { GuestInstance } from '../support/guest-instance.ts';
import { Installation } from '../support/installation.ts';
import { ROLES } from '../support/processes.ts';
import { untilWorks } from '../support/waiting.ts';

const HASH = 'sha256sum /srv/* | sort';

/** Mulberry32: small, and good enough to choose by. */
function chances(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

const WORK = ['flush', 'restart', 'stop', 'force stop', 'start', 'nothing'] as const;
const VICTIMS = [...ROLES, 'agent', 'control-plane', 'launcher', 'database', 'qemu'] as const;

class Rounds {
  readonly #berth: Installation;
  readonly #guest: GuestInstance;
  readonly #random: () => number;
  #expected = '';

  constructor(berth: Installation, guest: GuestInstance, random: () => number) {
    this.#berth = berth;
    this.#guest = guest;
    this.#random = random;
  }

  #pick<T>(from: readonly T[]): T {
    return from[Math.floor(this.#random() * from.length)] as T;
  }

  async #write(): Promise<void> {
    const file = `/srv/f${Math.floor(this.#random() * 6)}`;
    const mib = Math.ceil(this.#random() * 24);
    this.#expected = await this.#guest.shAgain(`head -c ${mib}M /dev/urandom > ${file}; sync; ${HASH}`);
  }

  async #kill(victim: (typeof VICTIMS)[number]): Promise<void> {
    switch (victim) {
      case 'launcher':
        return this.#berth.restart('SIGKILL');
      case 'database':
        process.kill(await this.#berth.postgresPid(), 'SIGKILL');
        return;
      case 'qemu':
        try {
          killProcess(this.#guest.qemu, 'SIGKILL');
        } catch {
          // There is no VM just now.
        }
        return;
      default:
        await this.#berth.kill(victim).catch((error: unknown) => {
          if (!(error instanceof assert.AssertionError)) throw error; // being started again already
        });
    }
  }

  async #ask(work: (typeof WORK)[number]): Promise<void> {
    const { client } = this.#berth;
    const { path } = this.#guest;
    const signal = AbortSignal.timeout(30_000);
    if (work === 'start') await this.#guest.stop();
    const calls = {
      flush: { method: 'POST', path: `${path}/vm/flush` },
      restart: { method: 'POST', path: `${path}/vm/restart` },
      stop: { method: 'DELETE', path: `${path}/vm` },
      'force stop': { method: 'DELETE', path: `${path}/vm?force=true` },
      start: { method: 'POST', path: `${path}/vm` },
      nothing: { method: 'GET', path: `${path}/vm` },
    };
    const call = calls[work];
    await client.request(call.method, call.path, undefined, signal).catch(() => undefined);
  }

  /** Whatever state it is in now, until it runs. */
  async #run(): Promise<void> {
    const { client } = this.#berth;
    const running = async () => {
      const vm = await this.#guest.vm();
      if (vm.state === 'running' && isAlive(this.#guest.qemu)) return;
      if (vm.state === 'stopped' || vm.state === 'failed')
        await client.request('POST', `${this.#guest.path}/vm`);
      throw new Error(`it is ${vm.state}: ${JSON.stringify(vm.reason)}`);
    };
    await untilWorks('it runs', running, { timeout_ms: 120_000, every_ms: 200 });
  }

  async once(): Promise<string> {
    const work = this.#pick(WORK);
    const victims = this.#random() < 0.3 ? [this.#pick(VICTIMS), this.#pick(VICTIMS)] : [this.#pick(VICTIMS)];
    const after_ms = Math.floor(this.#random() ** 2 * 3_000);
    const through_store = this.#random() < 0.4;
    const what = `${work}, ${after_ms} ms later ${victims.join(' and ')}${through_store ? ', through the store' : ''}`;
    try {
      await this.#write();
      const asked = this.#ask(work);
      await sleep(after_ms);
      for (const victim of victims) await this.#kill(victim);
      await asked;
      await this.#berth.ready();
      await this.#run();
      if (through_store) {
        await untilWorks('a stop', () => this.#guest.stop(), { timeout_ms: 120_000, every_ms: 200 });
        await this.#berth.removeOverlays(this.#guest.id);
        await this.#run();
      }
      assert.equal(await this.#guest.shAgain(HASH), this.#expected);
      assert.equal(await this.#guest.sh('dmesg | grep -ciE "I/O error|EXT4-fs error" || true'), '0');
      const receipt = await untilWorks('a flush', () => this.#guest.flush(), { every_ms: 200 });
      assert(receipt.generation > 0);
      return what;
    } catch (error) {
      throw new Error(`after: ${what}`, { cause: error });
    }
  }
}

const seconds = Number(process.argv[2] ?? 600);
const seed = Number(process.argv[3] ?? Date.now() % 1_000_000);
const print = (line: string) => process.stdout.write(`${line}\n`);
print(`seed ${seed}`);
const berth = await Installation.start();
try {
  const guest = await GuestInstance.running(berth, 'rounds');
  const rounds = new Rounds(berth, guest, chances(seed));
  const deadline = performance.now() + seconds * 1_000;
  let count = 0;
  for (; performance.now() < deadline; count++) print(`${count + 1}: ${await rounds.once()}`);
  print(`${count} rounds`);
} catch (error) {
  print(`FAILED with seed ${seed}`);
  print(berth.output.split('\n').slice(-60).join('\n'));
  throw error;
} finally {
  await berth.dispose();
}
