/**
 * Clients that create and delete instances without a pause. Each request goes to one of several servers. If a request
 * gets no answer or 503, it is repeated with its Idempotency-Key at another server, as Berth's clients do.
 */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import type { InstanceBody, RestClient } from './rest-client.ts';
import { until } from './waiting.ts';

const PAUSE_MS = 100;
const CLIENTS = 3;
const ANSWER_MS = 20_000;
/** Of requests that were accepted meanwhile. */
const MORE = 30;

export class SteadyLoad {
  /** Ids of instances whose creation was acknowledged, and whose deletion was not. */
  readonly created = new Set<string>();
  readonly deleted = new Set<string>();
  /** Why requests were repeated. */
  readonly repeats: string[] = [];
  /** Of one request. */
  most_repeats = 0;
  accepted = 0;
  readonly #origins: readonly string[];
  readonly #token: string;
  readonly #clients: Promise<void>[];
  #turn = 0;
  #ends = false;
  #failure: unknown;

  constructor(origins: readonly string[], token: string) {
    this.#origins = origins;
    this.#token = token;
    this.#clients = Array.from({ length: CLIENTS }, () =>
      this.#run().catch((error: unknown) => {
        this.#failure ??= error;
      }),
    );
  }

  /** Waits until it has been served well beyond now. */
  async goesOn(): Promise<void> {
    const enough = this.accepted + MORE;
    await until('the load goes on', () => {
      this.#check();
      return this.accepted >= enough;
    });
  }

  async end(): Promise<void> {
    this.#ends = true;
    await Promise.all(this.#clients);
    this.#check();
  }

  /** @throws if an instance that was made is not there, or one that was deleted is; reads them at `client` */
  async requireKept(client: RestClient): Promise<void> {
    const there = new Set<string>();
    for (let cursor: string | null = null; ; ) {
      const query: string = `?limit=200${cursor === null ? '' : `&cursor=${encodeURIComponent(cursor)}`}`;
      const list = await client.expect<{ data: InstanceBody[]; next_cursor: string | null }>(
        ...([200, 'GET', `/v1/instances${query}`] as const),
      );
      for (const { id, deleting } of list.data) if (!deleting) there.add(id);
      cursor = list.next_cursor;
      if (cursor === null) break;
    }
    const missing = [...this.created].filter((id) => !there.has(id));
    const undead = [...this.deleted].filter((id) => there.has(id));
    assert.deepEqual([missing, undead], [[], []]);
  }

  /** @throws for an answer that no caller should get */
  #check(): void {
    if (this.#failure !== undefined) throw this.#failure;
  }

  async #run(): Promise<void> {
    while (!this.#ends) {
      const kept = await this.#create();
      const short = await this.#create();
      await this.#ask('DELETE', `/v1/instances/${short}`);
      this.created.delete(short);
      this.deleted.add(short);
      await this.#ask('GET', `/v1/instances/${kept}`);
    }
  }

  async #create(): Promise<string> {
    const { id } = (await this.#ask('POST', '/v1/instances', { name: `load-${randomUUID()}` })) as {
      id: string;
    };
    this.created.add(id);
    return id;
  }

  /** The body of the answer that accepts it. */
  async #ask(method: string, path: string, body?: object): Promise<unknown> {
    const headers = {
      authorization: `Bearer ${this.#token}`,
      ...(method === 'GET' ? {} : { 'idempotency-key': randomUUID() }),
      ...(body === undefined ? {} : { 'content-type': 'application/json' }),
    };
    const first = this.#turn++;
    for (let repeats = 0; ; repeats++) {
      const origin = this.#origins[(first + repeats) % this.#origins.length] ?? '';
      this.most_repeats = Math.max(this.most_repeats, repeats);
      const options = { method, headers, signal: AbortSignal.timeout(ANSWER_MS) };
      const answer = await fetch(origin + path, {
        ...options,
        ...(body ? { body: JSON.stringify(body) } : {}),
      })
        .then(async (got) => ({ status: got.status, ok: got.ok, text: await got.text() }))
        .catch((error: Error) => ({ status: 0, ok: false, text: String(error.cause ?? error) }));
      if (answer.ok) {
        this.accepted += 1;
        return answer.text === '' ? null : JSON.parse(answer.text);
      }
      const may_repeat = [0, 503].includes(answer.status) || /IDEMPOTENCY_IN_PROGRESS/.test(answer.text);
      assert.ok(may_repeat, `${method} ${path}: ${answer.status} ${answer.text}`);
      this.repeats.push(`${method} ${answer.status} ${answer.text}`);
      await sleep(PAUSE_MS);
    }
  }
}
