/** The head of a disk as proof: receipts and ends of stops are made of nothing else. */

import { assert, present } from '../../shared/assert.ts';
import type { InstanceId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';

/** A disk's head as the database has it: all of it is durable. Only {@link SavedHead.read} makes one. */
export class SavedHead {
  readonly commit_id: string;
  readonly generation: number;
  /** null: the image, which was never written to. */
  readonly durable_at: Date | null;
  /** Makes the type nominal: no other object passes for one. */
  readonly #read = true;

  private constructor(row: { commit_id: string; generation: number; durable_at: Date | null }) {
    this.commit_id = row.commit_id;
    this.generation = row.generation;
    this.durable_at = row.durable_at;
    assert(this.#read, 'it was read');
  }

  /** Undefined when there is no such disk. */
  static async find(tx: Tx, instance_id: InstanceId): Promise<SavedHead | undefined> {
    const row = await tx
      .selectFrom('disks')
      .select(['commit_id', 'generation', 'durable_at'])
      .where('instance_id', '=', instance_id)
      .executeTakeFirst();
    return row && new SavedHead(row);
  }

  static async read(tx: Tx, instance_id: InstanceId): Promise<SavedHead> {
    return present(await SavedHead.find(tx, instance_id), 'disk of an instance');
  }
}
