/**
 * Disks with a model of each in memory. A flush goes through the real sink into a real store and database. The model
 * keeps every generation byte for byte, for comparison.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after } from 'node:test';
import { sql } from 'kysely';
import { transaction } from '../../src/control-plane/db/pool.ts';
import type { CompactOptions } from '../../src/control-plane/disks/compact-disk.ts';
import { openDataKeys } from '../../src/control-plane/disks/data-keys.ts';
import { freeDeleted, freeSegments, sweepOrphans } from '../../src/control-plane/disks/remove-objects.ts';
import { advanceHead, readLayers } from '../../src/control-plane/disks/store.ts';
import { CompressPool } from '../../src/disk-format/compress-pool.ts';
import { KeyRing } from '../../src/disk-format/frame-cipher.ts';
import { loadMap } from '../../src/disk-format/load-map.ts';
import { coalesce, readRun } from '../../src/disk-format/read-run.ts';
import { BLOCK_BYTES, FRAME_KIND } from '../../src/disk-format/segment-format.ts';
import { FlushSink } from '../../src/host/disk/flush-sink.ts';
import { FolderStore } from '../../src/object-store/folder-store.ts';
import type { ObjectStore } from '../../src/object-store/object-store.ts';
import { type InstanceId, newId } from '../../src/shared/ids.ts';
import { type InstanceOut, newName, type TestApi } from './api.ts';
import type { Person } from './people.ts';

export const BLOCKS = 12;
const DISK_BYTES = BLOCKS * BLOCK_BYTES;
export const BASE = randomBytes(DISK_BYTES);

export interface ModelOptions {
  readonly api: TestApi;
  readonly owner: Person;
  readonly store: ObjectStore;
  readonly pool: CompressPool;
}

/** The context of a test file's disks, with a new store in `folder`. It is removed after the file's last test. */
export async function modelForFile(api: TestApi) {
  const folder = await mkdtemp(join(tmpdir(), 'berth-model-'));
  const pool = new CompressPool();
  after(async () => {
    await pool.close();
    await rm(folder, { recursive: true, force: true });
  });
  return { api, owner: await api.person(), store: await FolderStore.open(folder), pool, folder };
}

export class ModelDisk {
  readonly id: InstanceId;
  readonly #options: ModelOptions;
  head: number;
  content: Buffer;
  /** The generations that the API lists. */
  readonly shown: Map<number, { readonly content: Buffer; pinned: boolean }>;

  private constructor(options: ModelOptions, id: InstanceId, head: number, content: Buffer) {
    this.id = id;
    this.head = head;
    this.content = Buffer.from(content);
    this.shown = new Map(head === 0 ? [] : [[head, { content, pinned: false }]]);
    this.#options = options;
  }

  static async make(options: ModelOptions, keep_last: number): Promise<ModelDisk> {
    const { api, owner } = options;
    const keep = { last: keep_last, daily_days: 0 };
    const { id } = await api.instance(owner, { generations_keep: keep, disk_gib: 1 });
    return new ModelDisk(options, id, 0, BASE);
  }

  /** Writes these blocks, and commits a generation. */
  async flush(blocks: Iterable<number>, what: 'noise' | 'text' | 'zeroes', encrypted = true): Promise<void> {
    const { api, store, pool } = this.#options;
    const { db, context } = api;
    const keys = (await openDataKeys(db, context.disk_keys, this.id)) ?? assert.fail('no keys');
    const { epoch } = await db
      .selectFrom('disks')
      .select('epoch')
      .where('instance_id', '=', this.id)
      .executeTakeFirstOrThrow();
    const sink = new FlushSink({
      ...{ store, pool, disk_id: this.id, epoch, generation: this.head + 1 },
      ...{ key_prefix: `disks/${this.id}`, size_bytes: DISK_BYTES },
      head: await this.map(this.head),
      data_key: encrypted ? keys.own : null,
    });
    for (const block of new Set(blocks)) {
      const at = block * BLOCK_BYTES;
      const now = this.content.subarray(at, at + BLOCK_BYTES);
      if (what === 'noise') randomBytes(BLOCK_BYTES).copy(now);
      else now.fill(what === 'text' ? `block ${block} of ${this.head} ` : 0);
      if (what === 'zeroes') await sink.writeZeroes(at, BLOCK_BYTES);
      else await sink.write(at, now);
    }
    const { segments, dirty_bytes } = await sink.finish();
    if (segments.length === 0) return;
    const commit = {
      ...{ instance_id: this.id, vm_id: newId('vm'), epoch, generation: this.head + 1 },
      ...{ image_version: 'a'.repeat(64), segments, consistency: 'crash' as const, dirty_bytes },
    };
    assert.notEqual(await transaction(db, (tx) => advanceHead(tx, commit)), null);
    this.#moved(this.head + 1);
  }

  /** Restores through the API, and in the model. */
  async restore(generation: number): Promise<void> {
    const answer = await this.#post<InstanceOut>('restore', { generation });
    assert.equal(answer.status, 200, answer.text);
    this.content = Buffer.from(this.#shownAt(generation).content);
    this.#moved(answer.body.disk.generation);
  }

  async fork(generation: number): Promise<ModelDisk> {
    const answer = await this.#post<InstanceOut>('fork', { name: newName(), generation });
    assert.equal(answer.status, 201, answer.text);
    const { content } = this.#shownAt(generation);
    return new ModelDisk(this.#options, answer.body.id, generation, content);
  }

  async pin(generation: number, pinned: boolean): Promise<void> {
    const { api, owner } = this.#options;
    const path = `/v1/instances/${this.id}/generations/${generation}`;
    assert.equal((await api.as(owner).patch(path, { pinned })).status, 200);
    this.#shownAt(generation).pinned = pinned;
  }

  /** Applies the retention rule "the last N generations" to the model. */
  retained(last: number): void {
    const newest = [...this.shown.keys()].sort((a, b) => b - a).slice(0, last);
    for (const [generation, { pinned }] of this.shown)
      if (!pinned && !newest.includes(generation)) this.shown.delete(generation);
  }

  async remove(): Promise<void> {
    const { api, owner, store } = this.#options;
    assert.equal((await api.as(owner).delete(`/v1/instances/${this.id}`)).status, 202);
    await freeDeleted(api.db, store, api.context.log);
  }

  async map(generation: number) {
    const layers = await readLayers(this.#options.api.db, this.id, generation);
    return loadMap({ store: this.#options.store, keys: await this.#ring(), layers });
  }

  /** Checks that the API lists the model's generations, and that each has the model's content. */
  async verify(): Promise<void> {
    const { api, owner } = this.#options;
    const listed = await api
      .as(owner)
      .get<{ data: { generation: number }[] }>(`/v1/instances/${this.id}/generations?limit=200`);
    assert.deepEqual(
      listed.body.data.map(({ generation }) => generation),
      [...this.shown.keys()].sort((a, b) => b - a),
    );
    for (const [generation, { content }] of this.shown)
      assert((await this.#read(generation)).equals(content), `generation ${generation} of ${this.id}`);
  }

  async #read(generation: number): Promise<Buffer> {
    const bytes = Buffer.from(BASE);
    const [map, keys] = [await this.map(generation), await this.#ring()];
    for (const { block, kind } of map.inBlockOrder())
      if (kind === FRAME_KIND.zero) bytes.fill(0, block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES);
    for (const run of coalesce(map.inSegmentOrder())) {
      const blocks = await readRun(run, { store: this.#options.store, keys });
      for (const [i, { block }] of run.frames.entries())
        blocks.copy(bytes, block * BLOCK_BYTES, i * BLOCK_BYTES, (i + 1) * BLOCK_BYTES);
    }
    return bytes;
  }

  async #ring(): Promise<KeyRing> {
    const { api } = this.#options;
    return new KeyRing((await openDataKeys(api.db, api.context.disk_keys, this.id))?.keys ?? []);
  }

  #shownAt(generation: number) {
    return this.shown.get(generation) ?? assert.fail(`generation ${generation}`);
  }

  #moved(head: number): void {
    this.head = head;
    this.shown.set(head, { content: Buffer.from(this.content), pinned: false });
  }

  #post<T>(what: string, body: unknown) {
    const { api, owner } = this.#options;
    return api.as(owner).post<T>(`/v1/instances/${this.id}/${what}`, body);
  }
}

/** Deletes all unreferenced objects, as if their waiting times were over. */
export async function freeEverything({ api, store }: ModelOptions): Promise<void> {
  await sql`update object_writers set since = now() - interval '2 days'`.execute(api.db);
  await sweepOrphans(api.db, store, api.context.log, -60_000);
  await freeSegments(api.db, store, api.context.log, 0);
}

/** Simulates a process that is killed at its `step`th database query or store operation. All later ones fail without effect. */
export class KilledProcess {
  readonly options: CompactOptions;
  readonly #step: number;
  #taken = 0;

  constructor({ db, store, disk_keys }: CompactOptions, step: number) {
    this.#step = step;
    this.options = { db: db.withPlugin(this.#plugin()), store: this.#wrap(store), disk_keys };
  }

  get died(): boolean {
    return this.#taken > this.#step;
  }

  #live(): void {
    this.#taken += 1;
    if (this.died) throw new Error('killed');
  }

  #plugin(): Parameters<CompactOptions['db']['withPlugin']>[0] {
    return {
      transformQuery: ({ node }) => {
        this.#live();
        return node;
      },
      // Killed after the query, so the answer is lost.
      transformResult: async ({ result }) => {
        this.#live();
        return result;
      },
    };
  }

  #wrap(store: ObjectStore): ObjectStore {
    const around = async <T>(work: () => Promise<T>): Promise<T> => {
      this.#live();
      const result = await work();
      this.#live();
      return result;
    };
    return {
      description: store.description,
      put: (key, body, signal) => around(() => store.put(key, body, signal)),
      get: (key, range, signal) => around(() => store.get(key, range, signal)),
      size: (key) => around(() => store.size(key)),
      list: (prefix) => store.list(prefix),
      delete: (key) => around(() => store.delete(key)),
      check: () => store.check(),
    };
  }
}
