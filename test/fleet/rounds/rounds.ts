/**
 * Rounds of faults against a fleet under load. Each strikes once or twice, takes it back, waits until all is well again, and has
 * the checker read the history so far. The seed determines the faults and the load's choices; the machine determines the timing.
 */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { InstanceBody, SshBody } from '../../support/rest-client.ts';
import { seededRandom } from '../../support/seeded-random.ts';
import { sshGreeting } from '../../support/sockets.ts';
import { until, untilWorks } from '../../support/waiting.ts';
import { check, comparisons, replacements } from './checker.ts';
import { CLOCKS_CAN_JUMP } from './clock.ts';
import { strike } from './faults.ts';
import { addressOf, CONTROLS, type Fleet, FRONTS } from './fleet.ts';
import type { Event, History } from './history.ts';
import { Load } from './load.ts';
import { Observer } from './observer.ts';
import { readHeads, readLosses, readRows } from './read-disks.ts';
import { type Fault, nameOf, type Round, schedule } from './schedule.ts';

/** Everything is back and every instance runs within this time after a fault. */
const SETTLE = { timeout_ms: 300_000, every_ms: 500 };
/** After that the checker says that an instance never ran elsewhere. */
const ELSEWHERE = { timeout_ms: 120_000, every_ms: 1_000 };

export interface RoundsTotal {
  readonly rounds: number;
  readonly faults: number;
  readonly calls: number;
  readonly refused: number;
  readonly unknown: number;
  readonly receipts: number;
  readonly records: number;
  readonly boots: number;
  /** Boots and heads that were compared with what receipts and stops cover. */
  readonly compared: number;
  readonly vms: number;
  readonly moved: number;
  /** Until instances of lost hosts ran elsewhere. */
  readonly elsewhere_ms: readonly number[];
  /** Losses of writes or of memory that were reported. */
  readonly losses: number;
}

export class Rounds {
  readonly #fleet: Fleet;
  readonly #history: History;
  readonly #observer: Observer;
  readonly #load: Load;
  readonly #rounds: Generator<Round, never>;
  /** The ids of reported losses that the history has. */
  readonly #losses = new Set<string>();
  #done = 0;
  #faults = 0;

  private constructor(fleet: Fleet, history: History, observer: Observer, load: Load, seed: number) {
    this.#fleet = fleet;
    this.#history = history;
    this.#observer = observer;
    this.#load = load;
    this.#rounds = schedule(seed, CLOCKS_CAN_JUMP);
  }

  static async begin(fleet: Fleet, history: History, seed: number): Promise<Rounds> {
    const observer = new Observer(fleet.hosts, history);
    const load = await Load.begin(fleet, history, seededRandom(seed + 1));
    const rounds = new Rounds(fleet, history, observer, load, seed);
    await rounds.#settle();
    return rounds;
  }

  /** Runs one round and describes it. @throws when a promise was broken */
  async once(): Promise<string> {
    const { wait_ms, faults: drawn } = this.#rounds.next().value;
    this.#load.resume();
    await sleep(wait_ms);
    const faults = drawn.map((fault) => this.#whereVmsAre(fault));
    const what = faults.map(nameOf).join(' and ');
    await Promise.all(faults.map((fault) => this.#suffer(fault)));
    await this.#settle();
    this.#done += 1;
    this.#faults += faults.length;
    this.#requireKept(what, readRows(this.#fleet));
    return what;
  }

  /** Ends the load, and checks the disks in the store too. */
  async end(): Promise<RoundsTotal> {
    await this.#load.end();
    await this.#settle();
    const rows = readRows(this.#fleet);
    this.#requireKept('the end', [...rows, ...(await readHeads(this.#fleet))]);
    this.#observer.close();
    return this.#total(rows);
  }

  close(): void {
    this.#observer.close();
  }

  /** A host without VMs loses none, so another one is struck. */
  #whereVmsAre(fault: Fault): Fault {
    if (!fault.loses && fault.how !== 'kill VM' && fault.how !== 'new disk') return fault;
    const numbers = [0, 1, 2].map((step) => 1 + ((fault.number - 1 + step) % 3));
    const number = numbers.find((each) => this.#observer.on(`rack-${each}`).length > 0);
    return number === undefined ? fault : { ...fault, number };
  }

  async #suffer(fault: Fault): Promise<void> {
    const host = `${fault.of}-${fault.number}`;
    const what = nameOf(fault);
    const instances = fault.loses
      ? this.#observer.on(host).filter((each) => this.#load.instances.includes(each))
      : [];
    const began_ms = Date.now();
    this.#history.add({ kind: 'fault', at_ms: began_ms, what });
    if (fault.loses) this.#history.add({ kind: 'lost', at_ms: began_ms, host, instances });
    if (fault.how === 'restore') return this.#restoreDatabase(fault.ms, what);
    if (fault.how === 'new disk') this.#history.add({ kind: 'new disk', at_ms: began_ms, host });
    const heal = await strike(this.#fleet, this.#observer, fault);
    await sleep(fault.ms);
    if (instances.length > 0) await this.#untilElsewhere(began_ms);
    await heal();
    this.#history.add({ kind: 'healed', at_ms: Date.now(), what });
  }

  /** To a copy that is `ms` old. */
  async #restoreDatabase(ms: number, what: string): Promise<void> {
    const { cluster } = this.#fleet;
    const copy = join(cluster.folder, 'copy');
    const copied_ms = Date.now();
    cluster.copyLeader(copy);
    await sleep(ms);
    this.#noteLosses();
    for (const row of readRows(this.#fleet)) this.#history.add(row);
    await cluster.endNodes();
    this.#history.add({ kind: 'restored', at_ms: Date.now(), copied_ms });
    await cluster.restore(copy);
    this.#history.add({ kind: 'healed', at_ms: Date.now(), what });
  }

  #noteLosses(): void {
    for (const loss of readLosses(this.#fleet)) {
      if (this.#losses.has(loss.id)) continue;
      this.#losses.add(loss.id);
      this.#history.add(loss);
    }
  }

  /** Starts what has failed, as its owner would, until the instances that were lost at that time run elsewhere. */
  async #untilElsewhere(lost_ms: number): Promise<void> {
    const elsewhere = async () => {
      const events = this.#history.events.filter((event) => !('at_ms' in event) || event.at_ms >= lost_ms);
      if (replacements(events).every(({ after_ms }) => after_ms !== null)) return true;
      for (const { id, vm } of (await this.#load.list('control-1')) ?? [])
        if (vm.state === 'failed') await this.#load.start(id);
      return false;
    };
    await until('they run elsewhere', elsewhere, ELSEWHERE).catch(() => undefined);
  }

  /** Waits until hosts, PostgreSQL and ingresses are back and every instance runs, without the load. */
  async #settle(): Promise<void> {
    const stuck = (error: unknown) =>
      this.#history.add({ kind: 'stuck', at_ms: Date.now(), what: String(error).slice(0, 500) });
    try {
      await this.#fleet.untilUp();
      await this.#load.pause();
      await this.#load.uncordon();
      for (const at of CONTROLS)
        await untilWorks(`all instances run, says ${at}`, () => this.#allRun(at), SETTLE);
      await untilWorks('ingresses lead to each instance', () => this.#allReached(), SETTLE);
    } catch (error) {
      stuck(error);
    }
  }

  async #allRun(at: (typeof CONTROLS)[number]): Promise<InstanceBody[]> {
    const instances = (await this.#load.list(at)) ?? assert.fail(`${at} does not answer`);
    for (const { id, vm } of instances)
      if (['stopped', 'suspended', 'failed'].includes(vm.state)) await this.#load.start(id);
    const not = instances.filter(({ vm }) => vm.state !== 'running');
    assert(
      not.length === 0,
      not
        .map(({ name, vm }) => `${name} is ${vm.state}: ${vm.reason?.code} ${vm.reason?.message}`)
        .join('; '),
    );
    return instances;
  }

  /** Each instance by one of the ingresses, in turn, because a greeting costs an emulated guest a second. */
  async #allReached(): Promise<void> {
    for (const [at, instance] of (await this.#allRun('control-1')).entries()) {
      const { ssh } = instance as InstanceBody & { readonly ssh: SshBody };
      const front = FRONTS[(at + this.#done) % FRONTS.length] ?? 'front-1';
      assert.match(await sshGreeting(addressOf(front), ssh.port), /^SSH-2\.0-/, `${front} at ${ssh.port}`);
    }
  }

  #requireKept(what: string, rows: readonly Event[]): void {
    this.#noteLosses();
    const broken = check([...this.#history.events, ...rows]);
    for (const row of broken.length > 0 ? rows : []) this.#history.add(row);
    assert.equal(broken.length, 0, `after ${what}:\n${broken.join('\n')}`);
  }

  #total(rows: readonly Event[]): RoundsTotal {
    const { events } = this.#history;
    const count = (wanted: (event: Event) => boolean) => events.filter(wanted).length;
    const vms = rows.filter((row) => row.kind === 'vm').toSorted((a, b) => a.boot - b.boot);
    const moved = vms.filter((row) =>
      vms.some(
        (other) => other.instance === row.instance && other.boot === row.boot - 1 && other.host !== row.host,
      ),
    );
    const calls = (outcome: string) => count((event) => event.kind === 'call' && event.outcome === outcome);
    return {
      rounds: this.#done,
      faults: this.#faults,
      calls: count(({ kind }) => kind === 'call'),
      refused: calls('refused'),
      unknown: calls('unknown'),
      receipts: count((event) => event.kind === 'call' && event.verb === 'flush' && event.outcome === 'ok'),
      records: count(({ kind }) => kind === 'record'),
      boots: count(({ kind }) => kind === 'boot'),
      compared: comparisons([...events, ...rows]).length,
      vms: vms.length,
      moved: moved.length,
      losses: this.#losses.size,
      elsewhere_ms: replacements(events).flatMap(({ after_ms }) => after_ms ?? []),
    };
  }
}

/** What a server says first to a new connection. */
