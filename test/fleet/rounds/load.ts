/**
 * What users and operators do meanwhile, through the API of either control plane: instances are flushed, stopped, suspended,
 * forked and started again, and hosts are drained. Each call is noted with its begin, end and outcome. A call without an answer
 * is repeated once at the other control plane, with the same Idempotency-Key.
 */
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import type { InstanceBody, ReceiptBody, VmBody } from '../../support/rest-client.ts';
import { CONTROLS, type Fleet } from './fleet.ts';
import { FIRST_BOOT } from './guest-program.ts';
import type { Call, History, Verb } from './history.ts';

const SMALL = { memory_mib: 256, disk_gib: 2, generations_keep: { last: 1_000, daily_days: 14 } };
/** The instances that live all the time. Those with `restart: on_failure` are started by Berth after a loss. */
const INSTANCES = [
  { name: 'one', restart: 'on_failure', auto_flush_seconds: 10 },
  { name: 'two', restart: 'never', auto_flush_seconds: null },
  { name: 'three', restart: 'on_failure', auto_flush_seconds: null },
] as const;
const PAUSE_MS = 700;
const ANSWER_MS = 20_000;
const FLUSH_MS = 60_000;
/** A fork lives until it has reported, at most for this time. */
const FORK_MS = 60_000;
/** A drained host is used again after this time at most. */
const DRAINED_MS = 15_000;
/** One of so many turns. */
const TURNS = { flush: 1, stop: 12, suspend: 15, fork: 20, drain: 12 };

/** `status` 0: no answer came. */
type Answer<T> = { readonly outcome: Call['outcome']; readonly status: number; readonly body: T | undefined };
type Noted = Partial<Pick<Call, 'generation' | 'boot' | 'made'>>;

export class Load {
  /** Those that live all the time. */
  readonly instances: string[] = [];
  readonly #fleet: Fleet;
  readonly #history: History;
  readonly #random: () => number;
  readonly #ended = new AbortController();
  readonly #workers: Promise<void>[] = [];
  #paused: PromiseWithResolvers<void> | undefined;
  #busy = 0;
  #forks = 0;

  private constructor(fleet: Fleet, history: History, random: () => number) {
    this.#fleet = fleet;
    this.#history = history;
    this.#random = random;
  }

  /** Creates the instances, and begins. */
  static async begin(fleet: Fleet, history: History, random: () => number): Promise<Load> {
    const load = new Load(fleet, history, random);
    for (const settings of INSTANCES) {
      const body = { ...SMALL, ...settings, user_data: FIRST_BOOT };
      const { body: made } = await load.#call<InstanceBody>(
        'create',
        settings.name,
        'POST',
        '/v1/instances',
        body,
      );
      if (!made) throw new Error(`${settings.name} is created`);
      load.instances.push(made.id);
      load.#workers.push(load.#work(() => load.#use(made.id)));
    }
    load.#workers.push(load.#work(() => load.#drain()));
    return load;
  }

  /** No call begins from now on. Resolves when those that have begun are over. */
  async pause(): Promise<void> {
    this.#paused ??= Promise.withResolvers();
    while (this.#busy > 0) await sleep(50);
  }
  resume(): void {
    this.#paused?.resolve();
    this.#paused = undefined;
  }
  async end(): Promise<void> {
    this.#ended.abort();
    this.resume();
    await Promise.all(this.#workers);
  }

  /** The instances with their VMs; null: no answer. */
  async list(at: (typeof CONTROLS)[number]): Promise<InstanceBody[] | null> {
    const answer = await this.#ask<{ data: InstanceBody[] }>(at, 'GET', '/v1/instances', ANSWER_MS).catch(
      () => null,
    );
    return answer?.status === 200 ? answer.body.data.filter(({ deleting }) => !deleting) : null;
  }
  start(instance: string): Promise<Answer<VmBody>> {
    return this.#call('start', instance, 'POST', `/v1/instances/${instance}/vm`);
  }

  async #work(turn: () => Promise<void>): Promise<void> {
    while (!this.#ended.signal.aborted) {
      await this.#paused?.promise;
      this.#busy += 1;
      await turn().finally(() => {
        this.#busy -= 1;
      });
      await sleep(PAUSE_MS * (0.5 + this.#random()), undefined, { signal: this.#ended.signal }).catch(
        () => undefined,
      );
    }
  }

  #oneOf(turns: number): boolean {
    return this.#random() * turns < 1;
  }
  #some(): (typeof CONTROLS)[number] {
    return this.#random() < 0.5 ? 'control-1' : 'control-2';
  }

  async #vm(instance: string): Promise<VmBody | null> {
    const answer = await this.#ask<VmBody>(
      this.#some(),
      'GET',
      `/v1/instances/${instance}/vm`,
      ANSWER_MS,
    ).catch(() => null);
    return answer?.status === 200 ? answer.body : null;
  }

  /** One turn of a user. */
  async #use(instance: string): Promise<void> {
    const vm = await this.#vm(instance);
    const path = `/v1/instances/${instance}`;
    if (vm === null) return;
    if (['stopped', 'suspended', 'failed'].includes(vm.state)) return void (await this.start(instance));
    if (vm.state !== 'running') return;
    if (this.#oneOf(TURNS.stop)) return this.#end('stop', instance, vm.boot);
    if (this.#oneOf(TURNS.suspend)) return this.#end('suspend', instance, vm.boot);
    if (this.#oneOf(TURNS.fork)) return this.#fork(instance);
    const noted = ({ generation }: ReceiptBody): Noted => ({ generation });
    await this.#call('flush', instance, 'POST', `${path}/vm/flush`, undefined, noted, FLUSH_MS);
  }

  /** A stop or a suspend, noted again when it is over. */
  async #end(verb: 'stop' | 'suspend', instance: string, boot: number): Promise<void> {
    const began_ms = Date.now();
    const path = `/v1/instances/${instance}/vm`;
    const [method, to] = verb === 'stop' ? ['DELETE', path] : ['POST', `${path}/suspend`];
    const { outcome } = await this.#call(verb, instance, method ?? '', to ?? '');
    if (outcome !== 'ok') return;
    const what = verb === 'stop' ? 'stopped' : 'suspended';
    const until_ms = began_ms + FLUSH_MS;
    while (Date.now() < until_ms) {
      const vm = await this.#vm(instance);
      if (vm && (vm.boot !== boot || vm.state === 'failed')) return;
      if (vm?.state === what && vm.reason?.code === `${verb}_requested`) {
        const at_ms = Date.now();
        this.#history.add({
          ...{
            kind: 'call',
            began_ms,
            at_ms,
            verb,
            at: 'control',
            instance,
            outcome: 'ok',
            what,
            boot,
          },
        });
        return;
      }
      await sleep(300);
    }
  }

  /** A fork boots, reports what it has, and is deleted. */
  async #fork(instance: string): Promise<void> {
    this.#forks += 1;
    const noted = ({ id }: InstanceBody): Noted => ({ made: id });
    const body = { name: `fork-${this.#forks}` };
    const { body: made } = await this.#call<InstanceBody>(
      'fork',
      instance,
      'POST',
      `/v1/instances/${instance}/fork`,
      body,
      noted,
    );
    if (!made) return;
    const booted = () =>
      this.#history.events.some((event) => event.kind === 'boot' && event.instance === made.id);
    for (const until_ms = Date.now() + FORK_MS; !booted() && Date.now() < until_ms; await sleep(500)) {
      const vm = await this.#vm(made.id);
      if (vm && ['stopped', 'failed'].includes(vm.state)) await this.start(made.id);
    }
    const gone = async () =>
      [202, 404].includes((await this.#call('delete', made.id, 'DELETE', `/v1/instances/${made.id}`)).status);
    for (const until_ms = Date.now() + FORK_MS; !(await gone()) && Date.now() < until_ms; )
      await sleep(1_000);
  }

  /** One turn of the operator. */
  async #drain(): Promise<void> {
    if (!this.#oneOf(TURNS.drain)) return;
    const host = `rack-${1 + Math.floor(this.#random() * 3)}`;
    await this.#operator('drain', host);
    const until_ms = Date.now() + DRAINED_MS;
    while (Date.now() < until_ms && !this.#paused) await sleep(300);
    for (let attempt = 0; attempt < 10 && !(await this.#operator('uncordon', host)); attempt++)
      await sleep(1_000);
  }

  /** Takes the drains of all hosts back. */
  async uncordon(): Promise<void> {
    for (const [host = ''] of this.#fleet.cluster.query('select name from hosts where draining or cordoned'))
      for (let attempt = 0; attempt < 20 && !(await this.#operator('uncordon', host)); attempt++)
        await sleep(1_000);
  }

  async #operator(verb: 'drain' | 'uncordon', host: string): Promise<boolean> {
    const at = this.#some();
    const began_ms = Date.now();
    const ended = await this.#fleet.operator(at, 'host', verb, host).then(
      (said) => ({ outcome: 'ok', what: said.trim() }) as const,
      (error: { stderr?: string }) =>
        ({
          outcome: error.stderr ? 'refused' : 'unknown',
          what: (error.stderr || String(error)).trim().slice(0, 200),
        }) as const,
    );
    this.#history.add({ kind: 'call', began_ms, at_ms: Date.now(), verb, at, instance: host, ...ended });
    return ended.outcome === 'ok';
  }

  async #call<T>(
    verb: Verb,
    instance: string,
    method: string,
    path: string,
    json?: unknown,
    noted: (body: T) => Noted = () => ({}),
    timeout_ms = ANSWER_MS,
  ): Promise<Answer<T>> {
    const key = randomUUID();
    const first = this.#some();
    // Also of the repeated call: what was written after the first one began may be missing in its receipt.
    const began_ms = Date.now();
    for (const at of [first, CONTROLS.find((other) => other !== first) ?? first]) {
      const add = (outcome: Call['outcome'], what: string, more: Noted = {}) =>
        this.#history.add({
          kind: 'call',
          began_ms,
          at_ms: Date.now(),
          verb,
          at,
          instance,
          outcome,
          what,
          ...more,
        });
      try {
        const { status, body, text } = await this.#ask<T>(at, method, path, timeout_ms, json, key);
        const outcome = outcomeOf(status);
        add(
          outcome,
          outcome === 'ok' ? String(status) : `${status} ${text.slice(0, 300)}`,
          outcome === 'ok' ? noted(body) : {},
        );
        return { outcome, status, body: outcome === 'ok' ? body : undefined };
      } catch (error) {
        add('unknown', String(error));
      }
    }
    return { outcome: 'unknown', status: 0, body: undefined };
  }

  async #ask<T>(
    at: (typeof CONTROLS)[number],
    method: string,
    path: string,
    timeout_ms: number,
    json?: unknown,
    key?: string,
  ): Promise<{ readonly status: number; readonly body: T; readonly text: string }> {
    const response = await fetch(this.#fleet.origin(at) + path, {
      method,
      headers: {
        authorization: `Bearer ${this.#fleet.api_key}`,
        ...(json === undefined ? {} : { 'content-type': 'application/json' }),
        ...(key === undefined || method !== 'POST' ? {} : { 'idempotency-key': key }),
      },
      ...(json === undefined ? {} : { body: JSON.stringify(json) }),
      signal: AbortSignal.timeout(timeout_ms),
    });
    const text = await response.text();
    return { status: response.status, body: (text === '' ? undefined : JSON.parse(text)) as T, text };
  }
}

/** 503 says that nothing was done. Other errors of the server are mistakes. */
function outcomeOf(status: number): Call['outcome'] {
  if (status < 300) return 'ok';
  return status < 500 || status === 503 ? 'refused' : 'wrong';
}
