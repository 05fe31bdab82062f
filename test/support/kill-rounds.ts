/**
 * Runs random rounds against one guest. Each round requests some work, and strikes once or twice at a random moment: a
 * process is killed or frozen, the host's disk is replaced, the database is restored to an earlier copy, or the object
 * store fails or answers wrongly. Then the disk is compared with the promises of the guest's fsyncs and of the receipts
 * (`guest-journal.ts`):
 *
 * - Fsynced data is on the disk as long as the host keeps the overlay. An older disk is reported as `recovered`.
 * - Data that a receipt, a stop or a suspend covers is in the object store, unless the database is older than that.
 * - Memory runs at most once (a token in the guest's tmpfs proves it), and the loss of saved memory is reported.
 * - No read or write in the guest fails, unless its QEMU is killed.
 *
 * The seed determines the choices; the machine determines the timing.
 */
import assert from 'node:assert/strict';
import { randomInt, randomUUID } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  isProcessAlive,
  killProcess,
  type ProcessIdentity,
  waitForExit,
} from '../../src/host/qemu/qemu-process.ts';
import type { VmRecord } from '../../src/host/vm/record.ts';
import type { GuestInstance } from './guest-instance.ts';
import { GuestJournal } from './guest-journal.ts';
import type { Installation } from './installation.ts';
import { copyDatabaseFiles, replaceHostDisk, restoreDatabaseFiles } from './replaced-files.ts';
import type { InstanceBody } from './rest-client.ts';
import { seededRandom } from './seeded-random.ts';
import { type Toxic, type ToxicProxy, wrongAnswers } from './toxic-proxy.ts';
import { until, untilWorks } from './waiting.ts';

/** An entry is chosen as often as it is listed. Kills that reboot the guest are rare, because they cost most of a round. */
const WORK = [
  ...many('flush', 6),
  ...many('long flush', 5),
  ...many('nothing', 3),
  ...many('suspend', 2),
  ...['restart', 'stop', 'stop', 'force stop', 'start', 'lazy start', 'lazy start', 'resume', 'resume'],
] as const;
const VICTIMS = [
  ...many('agent', 6),
  ...many('control-plane', 4),
  ...many('database', 3),
  ...many('qemu', 3),
  ...['ingress', 'launcher'],
  ...['frozen agent', 'frozen agent', 'frozen control-plane', 'frozen qemu'],
  ...many('replaced disk', 4),
  ...many('older database', 3),
] as const;
/** The choices if the object store can be made to fail. */
const WITH_STORE = [
  ...VICTIMS,
  ...many('store away', 8),
  ...many('store ill', 8),
  ...many('store wrong', 8),
] as const;
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
  /** Rounds after which the disk was older, and the product said so. */
  recovered: number;
}

export interface Round {
  readonly work: string;
  readonly victims: readonly string[];
  readonly after_ms: number;
  /** The database is restored only when the work is over. */
  readonly settled: boolean;
  /** To the copy of an earlier round. */
  readonly far: boolean;
  readonly long_ms: number;
  readonly afterwards: string;
}

/** The choices of a round. `has_store`: the object store can be made to fail. */
export function drawRound(random: () => number, has_store: boolean): Round {
  const pick = (from: readonly string[]) =>
    from[Math.floor(random() * from.length)] ?? assert.fail('there is a choice');
  const all = has_store ? WITH_STORE : VICTIMS;
  return {
    work: pick(WORK),
    victims: random() < 0.3 ? [pick(all), pick(all)] : [pick(all)],
    after_ms: Math.floor(random() ** 2 * 2_000),
    settled: random() < 0.5,
    far: random() < 0.3,
    long_ms: Math.floor(random() ** 3 * LONGEST_MS),
    afterwards: pick(AFTERWARDS),
  };
}

function describe({ work, after_ms, victims, settled, far, afterwards }: Round): string {
  const how = victims.map((victim) =>
    victim === 'older database'
      ? `${far ? 'far ' : ''}older database${settled ? ' afterwards' : ''}`
      : victim,
  );
  return `${work}, ${after_ms} ms later ${how.join(' and ')}${afterwards === 'nothing' ? '' : `; ${afterwards}`}`;
}

/** The database's files at a moment, and the newest record that receipts covered then. */
interface DatabaseCopy {
  readonly folder: string;
  readonly durable: number;
}

interface EventBody {
  readonly type: string;
  readonly timestamp: string;
  readonly data: { readonly sequence: number; readonly instance?: InstanceBody };
}

const LOSSES: readonly (string | undefined)[] = ['recovered', 'cold_boot'];
/** Ends guests, whose memory may have been used by then. */
const END_GUESTS: readonly string[] = ['qemu', 'frozen qemu', 'replaced disk'];

export class KillRounds implements Disposable {
  readonly total: RoundsTotal = { rounds: 0, records: 0, receipts: 0, boots: 0, recovered: 0 };
  readonly #berth: Installation;
  readonly #guest: GuestInstance;
  readonly #journal: GuestJournal;
  readonly #store: ToxicProxy | null;
  readonly #random: () => number;
  readonly #folder = mkdtempSync(join(tmpdir(), 'berth-rounds-'));
  readonly #copies: DatabaseCopy[] = [];
  /** The newest record that must be in the object store according to the receipts. */
  #durable = 0;
  /** The newest records may be missing, if that is reported, because the host's disk or the database was replaced. */
  #may_lose = false;
  /** Events before that were compared, or are of another database. */
  #since_ms = 0;
  #set_backs = 0;
  /** The newest record when the VM was seen stopped or suspended, which claims that the head has it. */
  #claimed: number | null = null;
  /** The guest's memory was seen saved. */
  #suspended = false;
  /** A guest was killed, whose memory may have run. */
  #may_have_run = false;
  #memory: { readonly boot_id: string; readonly token: string } | null = null;

  /** `store`: the proxy in front of the object store, if that should fail too. */
  constructor(berth: Installation, guest: GuestInstance, seed: number, store: ToxicProxy | null = null) {
    this.#berth = berth;
    this.#store = store;
    this.#guest = guest;
    this.#journal = new GuestJournal(guest);
    this.#random = seededRandom(seed);
  }

  [Symbol.dispose](): void {
    rmSync(this.#folder, { recursive: true, force: true });
  }

  /** Runs one round and describes it. */
  async once(): Promise<string> {
    const round = drawRound(this.#random, this.#store !== null);
    const what = describe(round);
    try {
      await this.#write();
      await this.#markMemory();
      if (round.work === 'long flush') await this.#journal.addLongFile();
      const began = this.#journal.acknowledged;
      await this.#prepare(round.work);
      if (round.victims.includes('older database')) await this.#copyDatabase();
      const asked = this.#ask(round.work);
      await sleep(round.after_ms);
      for (const victim of round.victims) await this.#strike(victim, round, asked);
      await asked;
      await this.#berth.ready();
      await this.#running();
      await this.#check();
      await this.#afterwards(round.afterwards);
      this.total.rounds += 1;
      this.total.records += Math.max(0, this.#journal.acknowledged - began);
      return `${what}: ${this.#journal.acknowledged} fsynced, ${this.#durable} durable`;
    } catch (error) {
      const vm = await this.#guest.vm().catch(String);
      throw new Error(`after: ${what}; the VM: ${JSON.stringify(vm)}`, { cause: error });
    }
  }

  /** Waits until the writer has written another record. */
  async #write(): Promise<void> {
    if (!this.#journal.writing) {
      await this.#verify();
      await this.#journal.start();
    }
    const before = this.#journal.acknowledged;
    await until('the guest writes', () => this.#journal.acknowledged > before, PATIENCE);
  }

  /** Stops or suspends the VM, if the work is to start it. */
  async #prepare(work: string): Promise<void> {
    if (work === 'start' || work === 'lazy start') {
      const acknowledged = await this.#journal.stop();
      await untilWorks('a stop', () => this.#guest.stop(), PATIENCE);
      this.#cover(acknowledged);
      // The next start reads from the store.
      if (work === 'lazy start') await this.#berth.removeOverlays(this.#guest.id);
    }
    if (work === 'resume') {
      await untilWorks('a suspend', () => this.#guest.suspend(), PATIENCE);
      this.#suspended = true;
      this.#cover(this.#journal.acknowledged);
    }
    // What comes after it counts, because the guest may have written more by then.
    this.#since_ms = Date.now();
  }

  /** What the head has from now on. */
  #cover(record: number): void {
    this.#durable = Math.max(this.#durable, record);
  }

  /** Checks that the writer continues; or, if a boot or a lost connection ended it, the disk and the memory. */
  async #check(): Promise<void> {
    const { acknowledged } = this.#journal;
    if (this.#journal.writing) {
      const goes_on = () => !this.#journal.writing || this.#journal.acknowledged > acknowledged;
      await until('the guest writes on', goes_on, PATIENCE);
      if (this.#journal.writing) {
        // Its memory has run on. A restored database may still end it later.
        this.#suspended = false;
        this.#claimed = null;
        this.#since_ms = Date.now();
        return;
      }
      await this.#running();
    }
    await this.#verify();
  }

  /** Compares the disk and the memory with the promises, and ends the writer. */
  async #verify(): Promise<void> {
    const expected = await this.#journal.stop();
    const events = await this.#events();
    if (this.#claimed !== null && claimsAll(events)) this.#cover(this.#claimed);
    const is_reported = events.some(isLoss);
    const found = await this.#journal.verify(this.#may_lose ? this.#durable : expected);
    if (found < expected) {
      assert(
        is_reported,
        `record ${expected} was fsynced, ${found} is the newest, and nothing says recovered`,
      );
      this.total.recovered += 1;
    }
    const { continued } = await this.#markMemory();
    const was_used = continued || this.#may_have_run;
    assert(!this.#suspended || was_used || is_reported, 'saved memory is gone, and nothing says so');
    this.#forgetRound();
  }

  /** All that has happened was compared. */
  #forgetRound(): void {
    this.#since_ms = Date.now();
    this.#may_lose = false;
    this.#may_have_run = false;
    this.#suspended = false;
    this.#claimed = null;
  }

  /** Puts a new token into the guest's memory. Fails if the memory is older than the last token. */
  async #markMemory(): Promise<{ readonly continued: boolean }> {
    const next = randomUUID();
    const script = `cat /proc/sys/kernel/random/boot_id; cat /run/token 2> /dev/null || echo; echo ${next} > /run/token`;
    const [boot_id = '', token = ''] = (await this.#guest.shAgain(script)).split('\n');
    const before = this.#memory;
    const continued = before?.boot_id === boot_id;
    // A repeated command finds its own.
    assert(
      !continued || [before.token, next].includes(token),
      `memory of boot ${boot_id} runs a second time: it has the token ${token}, not ${before?.token}`,
    );
    this.#memory = { boot_id, token: next };
    return { continued };
  }

  /** The instance's events of this round, or since its database was restored, oldest first. */
  async #events(): Promise<EventBody[]> {
    const list = () =>
      this.#berth.client.expect<{ data: EventBody[] }>(200, 'GET', `/v1/events?resource=${this.#guest.id}`);
    const { data } = await untilWorks('a list of events', list, PATIENCE);
    return data
      .filter(({ timestamp }) => Date.parse(timestamp) >= this.#since_ms)
      .toSorted((a, b) => a.data.sequence - b.data.sequence);
  }

  async #copyDatabase(): Promise<void> {
    const copy = { folder: mkdtempSync(join(this.#folder, 'copy-')), durable: this.#durable };
    await untilWorks('a copy', () => copyDatabaseFiles(this.#berth, copy.folder), PATIENCE);
    this.#copies.push(copy);
    const unused = this.#copies.length > 2 ? this.#copies.shift() : undefined;
    if (unused) rmSync(unused.folder, { recursive: true });
  }

  async #restoreDatabase({ settled, far }: Round, asked: Promise<void>): Promise<void> {
    if (settled) {
      await asked;
      await this.#running();
      await this.#markMemory();
    }
    const copy =
      (far ? this.#copies.at(-2) : undefined) ?? this.#copies.at(-1) ?? assert.fail('it was copied');
    await untilWorks('the copy', () => restoreDatabaseFiles(this.#berth, copy.folder), PATIENCE);
    this.#since_ms = Date.now();
    this.#claimed = null;
    this.#set_backs += 1;
    this.#durable = Math.min(this.#durable, copy.durable);
    this.#may_lose = true;
  }

  async #afterwards(what: string): Promise<void> {
    if (what === 'nothing') return;
    if (what === 'through the store') {
      const acknowledged = await this.#journal.stop();
      await untilWorks('a stop', () => this.#guest.stop(), PATIENCE);
      this.#cover(acknowledged);
    } else {
      await this.#flush();
      await this.#journal.stop();
      killProcess(this.#guest.qemu, 'SIGKILL');
      await this.#guest.becomes('failed', ({ state }) => state === 'failed');
    }
    await this.#berth.removeOverlays(this.#guest.id);
    await this.#running();
    await this.#journal.verify(this.#durable);
    this.#forgetRound();
  }

  async #flush(): Promise<void> {
    const before = this.#journal.acknowledged;
    await untilWorks('a flush', () => this.#guest.flush(), PATIENCE);
    this.total.receipts += 1;
    this.#cover(before);
  }

  async #ask(work: string): Promise<void> {
    const { client } = this.#berth;
    const { path } = this.#guest;
    const before = this.#journal.acknowledged;
    const set_backs = this.#set_backs;
    const signal = AbortSignal.timeout(30_000);
    const ask = (method: string, to: string) =>
      client.request(method, `${path}/vm${to}`, undefined, signal).catch(() => undefined);
    if (work === 'suspend') await ask('POST', '/suspend');
    if (['start', 'lazy start', 'resume'].includes(work)) await ask('POST', '');
    if (work === 'restart') await ask('POST', '/restart');
    if (work === 'stop') await ask('DELETE', '');
    if (work === 'force stop') await ask('DELETE', '?force=true');
    if (!work.endsWith('flush')) return;
    const answer = await ask('POST', '/flush');
    if (answer?.status !== 200) return;
    this.total.receipts += 1;
    // The restored database does not know it.
    if (set_backs === this.#set_backs) this.#cover(before);
  }

  async #strike(victim: string, round: Round, asked: Promise<void>): Promise<void> {
    const { long_ms } = round;
    if (END_GUESTS.includes(victim)) this.#may_have_run = true;
    if (victim === 'older database') return this.#restoreDatabase(round, asked);
    if (victim === 'replaced disk') {
      await replaceHostDisk(this.#berth);
      this.#may_lose = true;
      return;
    }
    const [, how = 'kill', whom = victim] = /^(frozen|store) (.+)$/.exec(victim) ?? [];
    if (how === 'kill') return this.#kill(whom);
    if (how === 'frozen') return this.#freeze(whom, long_ms);
    const store = this.#store ?? assert.fail('a store proxy was given');
    if (whom === 'away') await store.cut();
    // Not determined by the seed, because the number of requests is not either.
    else if (whom === 'wrong') store.poison(wrongAnswers);
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
      // A restored database may say so of a VM that is not there any more.
      const is_there = () =>
        isProcessAlive(this.#guest.qemu) && vmIdOf(this.#berth, this.#guest.id) === vm.id;
      if (vm.state === 'running' && is_there()) {
        this.total.boots = vm.boot;
        return;
      }
      if (vm.state === 'suspended') this.#suspended = true;
      if (vm.state === 'suspended' || vm.state === 'stopped') this.#claimed = this.#journal.acknowledged;
      if (['stopped', 'suspended', 'failed'].includes(vm.state))
        await client.request('POST', `${this.#guest.path}/vm`);
      throw new Error(`it is ${vm.state}: ${JSON.stringify(vm.reason)}`);
    };
    await untilWorks('it runs', runs, PATIENCE);
  }
}

/** Of the host's record. */
function vmIdOf({ paths }: Installation, instance_id: string): string {
  const record = JSON.parse(readFileSync(join(paths.vms, instance_id, 'record.json'), 'utf8')) as VmRecord;
  return record.vm_id;
}

/** The loss of writes, or of saved memory. */
function isLoss({ type, data }: EventBody): boolean {
  return (
    type.startsWith('vm.') && (type === 'vm.recovered' || LOSSES.includes(data.instance?.vm.reason?.code))
  );
}

/** Whether it was reported that the head has all writes, and no loss before. */
function claimsAll(events: readonly EventBody[]): boolean {
  const claim = events.findIndex(({ type }) => type === 'vm.stopped' || type === 'vm.suspended');
  if (claim < 0 || events.slice(0, claim + 1).some(isLoss)) return false;
  // The loss that a stop itself reports is the event after it.
  return events[claim + 1]?.type !== 'vm.recovered';
}
