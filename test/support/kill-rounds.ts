/**
 * Random rounds against one guest. Each round requests some work, kills or freezes one or two processes at a random moment, and
 * compares the disk with the promises of the guest's fsyncs and of the receipts (`guest-journal.ts`):
 *
 * - Fsynced data is on the disk as long as the host keeps the overlay.
 * - Data that a receipt or a stop covers is in the object store.
 * - No read or write in the guest fails, unless its QEMU is killed.
 *
 * The seed determines the choices; the machine determines the timing.
 */
import assert from 'node:assert/strict';
import { randomInt } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  isAlive,
  killProcess,
  type ProcessIdentity,
  waitForExit,
} from '../../src/host/vm/process-identity.ts';
import type { GuestInstance } from './guest-instance.ts';
import { GuestJournal } from './guest-journal.ts';
import type { Installation } from './installation.ts';
import { seededRandom } from './seeded-random.ts';
import type { Toxic, ToxicProxy } from './toxic-proxy.ts';
import { until, untilWorks } from './waiting.ts';

/** An entry is chosen as often as it is listed. Kills that reboot the guest are rare, because they cost most of a round. */
const WORK = [
  ...many('flush', 6),
  ...many('long flush', 5),
  ...many('nothing', 3),
  ...many('suspend', 2),
  ...['restart', 'stop', 'force stop'],
] as const;
const VICTIMS = [
  ...many('agent', 6),
  ...many('control-plane', 4),
  ...many('database', 3),
  ...many('qemu', 3),
  ...['ingress', 'launcher'],
  ...['frozen agent', 'frozen agent', 'frozen control-plane', 'frozen qemu'],
] as const;
/** The choices if the object store can be made to fail. */
const WITH_STORE = [...VICTIMS, ...many('store away', 8), ...many('store ill', 8)] as const;
const STORE_FAULTS: readonly Toxic[] = [
  { delay_ms: 1_500 },
  { answer: { status: 500, code: 'InternalError' } },
  { answer: { status: 503, code: 'SlowDown' } },
  { hang: true },
  { cut_request_at: 1_000 },
  { flip_request_at: 1_000 },
  { lose_answer: true },
  { cut_answer_at: 1_000 },
  { stall_answer_at: 1_000 },
  { flip_answer_at: 1_000 },
];
const AFTERWARDS = [...many('nothing', 9), 'through the store', 'overlay lost'] as const;
/** The maximum duration of a freeze or of a store fault, longer than the timeouts of all callers. */
const LONGEST_MS = 60_000;
const PATIENCE = { timeout_ms: 600_000, every_ms: 200 };

function many(what: string, times: number): string[] {
  return Array.from({ length: times }, () => what);
}

export interface RoundsTotal {
  rounds: number;
  records: number;
  receipts: number;
  boots: number;
}

export class KillRounds {
  readonly total: RoundsTotal = { rounds: 0, records: 0, receipts: 0, boots: 0 };
  readonly #berth: Installation;
  readonly #guest: GuestInstance;
  readonly #journal: GuestJournal;
  readonly #store: ToxicProxy | null;
  readonly #random: () => number;
  /** The newest record that must be in the object store according to the receipts. */
  #durable = 0;

  /** `store`: the proxy in front of the object store, if that should fail too. */
  constructor(berth: Installation, guest: GuestInstance, seed: number, store: ToxicProxy | null = null) {
    this.#berth = berth;
    this.#store = store;
    this.#guest = guest;
    this.#journal = new GuestJournal(guest);
    this.#random = seededRandom(seed);
  }

  /** Runs one round and describes it. */
  async once(): Promise<string> {
    const work = this.#pick(WORK);
    const all = this.#store ? WITH_STORE : VICTIMS;
    const victims = this.#random() < 0.3 ? [this.#pick(all), this.#pick(all)] : [this.#pick(all)];
    const after_ms = Math.floor(this.#random() ** 2 * 2_000);
    const afterwards = this.#pick(AFTERWARDS);
    const long_ms = Math.floor(this.#random() ** 3 * LONGEST_MS);
    const what = `${work}, ${after_ms} ms later ${victims.join(' and ')}${afterwards === 'nothing' ? '' : `; ${afterwards}`}`;
    try {
      await this.#write();
      if (work === 'long flush') await this.#journal.addLongFile();
      const began = this.#journal.acknowledged;
      const asked = this.#ask(work);
      await sleep(after_ms);
      for (const victim of victims) await this.#strike(victim, long_ms);
      await asked;
      await this.#berth.ready();
      await this.#running();
      await this.#check();
      await this.#afterwards(afterwards);
      this.total.rounds += 1;
      this.total.records += Math.max(0, this.#journal.acknowledged - began);
      return `${what}: ${this.#journal.acknowledged} fsynced, ${this.#durable} durable`;
    } catch (error) {
      throw new Error(`after: ${what}`, { cause: error });
    }
  }

  #pick(from: readonly string[]): string {
    return from[Math.floor(this.#random() * from.length)] ?? assert.fail('there is a choice');
  }

  /** Waits until the writer has written another record. */
  async #write(): Promise<void> {
    if (!this.#journal.writing) await this.#journal.start();
    const before = this.#journal.acknowledged;
    await until('the guest writes', () => this.#journal.acknowledged > before, PATIENCE);
  }

  /** Checks that the writer continues; or, if a boot or a lost connection ended it, that all fsynced records exist. */
  async #check(): Promise<void> {
    const { acknowledged } = this.#journal;
    if (this.#journal.writing) {
      const goes_on = () => !this.#journal.writing || this.#journal.acknowledged > acknowledged;
      await until('the guest writes on', goes_on, PATIENCE);
      if (this.#journal.writing) return;
    }
    await this.#journal.verify(await this.#journal.stop());
  }

  async #afterwards(what: string): Promise<void> {
    if (what === 'nothing') return;
    if (what === 'through the store') {
      const acknowledged = await this.#journal.stop();
      await untilWorks('a stop', () => this.#guest.stop(), PATIENCE);
      this.#durable = acknowledged;
    } else {
      await this.#flush();
      await this.#journal.stop();
      killProcess(this.#guest.qemu, 'SIGKILL');
      await this.#guest.becomes('failed', ({ state }) => state === 'failed');
    }
    await this.#berth.removeOverlays(this.#guest.id);
    await this.#running();
    await this.#journal.verify(this.#durable);
  }

  async #flush(): Promise<void> {
    const before = this.#journal.acknowledged;
    await untilWorks('a flush', () => this.#guest.flush(), PATIENCE);
    this.total.receipts += 1;
    this.#durable = Math.max(this.#durable, before);
  }

  async #ask(work: string): Promise<void> {
    const { client } = this.#berth;
    const { path } = this.#guest;
    const before = this.#journal.acknowledged;
    const signal = AbortSignal.timeout(30_000);
    const ask = (method: string, to: string) =>
      client.request(method, `${path}/vm${to}`, undefined, signal).catch(() => undefined);
    if (work === 'suspend') await ask('POST', '/suspend');
    if (work === 'restart') await ask('POST', '/restart');
    if (work === 'stop') await ask('DELETE', '');
    if (work === 'force stop') await ask('DELETE', '?force=true');
    if (!work.endsWith('flush')) return;
    const answer = await ask('POST', '/flush');
    if (answer?.status !== 200) return;
    this.total.receipts += 1;
    this.#durable = Math.max(this.#durable, before);
  }

  async #strike(victim: string, long_ms: number): Promise<void> {
    const [, how = 'kill', whom = victim] = /^(frozen|store) (.+)$/.exec(victim) ?? [];
    if (how === 'kill') return this.#kill(whom);
    if (how === 'frozen') return this.#freeze(whom, long_ms);
    const store = this.#store ?? assert.fail('a store proxy was given');
    if (whom === 'away') await store.cut();
    // Not determined by the seed, because the number of requests is not either.
    else store.poison(() => (Math.random() < 0.5 ? STORE_FAULTS[randomInt(STORE_FAULTS.length)] : undefined));
    await sleep(long_ms);
    if (whom === 'away') await store.mend();
    else store.heal();
  }

  async #kill(victim: string): Promise<void> {
    if (victim === 'launcher') return this.#berth.restart('SIGKILL');
    if (victim === 'database') {
      const pid = await this.#berth.postgresPid().catch(() => null); // being started again already
      if (pid !== null) process.kill(pid, 'SIGKILL');
      return;
    }
    if (victim === 'qemu') {
      const qemu = this.#identity(victim);
      if (qemu === null) return;
      killProcess(qemu, 'SIGKILL');
      assert(await waitForExit(qemu, PATIENCE.timeout_ms), 'QEMU has ended');
      return;
    }
    await this.#berth.kill(victim as 'agent').catch((error: unknown) => {
      if (!(error instanceof assert.AssertionError)) throw error; // being started again already
    });
  }

  /** Freezes a process: connections stay open and nothing answers, as on a machine that swaps or in a VM that migrates. */
  async #freeze(victim: string, ms: number): Promise<void> {
    const identity = this.#identity(victim);
    if (identity === null) return;
    killProcess(identity, 'SIGSTOP');
    await sleep(ms);
    killProcess(identity, 'SIGCONT');
  }

  /** Null while the VM has none. */
  #identity(victim: string): ProcessIdentity | null {
    try {
      return victim === 'qemu' ? this.#guest.qemu : this.#berth.role(victim as 'agent');
    } catch {
      return null;
    }
  }

  /** Starts the VM from any state, and waits until it runs. */
  async #running(): Promise<void> {
    const { client } = this.#berth;
    const runs = async () => {
      const vm = await this.#guest.vm();
      if (vm.state === 'running' && isAlive(this.#guest.qemu)) {
        this.total.boots = vm.boot;
        return;
      }
      if (['stopped', 'suspended', 'failed'].includes(vm.state))
        await client.request('POST', `${this.#guest.path}/vm`);
      throw new Error(`it is ${vm.state}: ${JSON.stringify(vm.reason)}`);
    };
    await untilWorks('it runs', runs, PATIENCE);
  }
}
