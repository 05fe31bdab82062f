/**
 * A statement that looks up several keys at once (`Batched`), in three sizes, the keys that are missing to a size being
 * null, which equals nothing. Why not an array: PostgreSQL guesses how many elements an unknown one has, holds that
 * against the plan that fits every array, and plans anew each time, which costs more than the look-up.
 */
import { CompiledQuery } from 'kysely';
import { present } from '../lib/assert.ts';

const SIZES = [1, 8, 64] as const;
export const MAX_KEYS = 64;

export class LookUpStatement {
  readonly #columns: number;
  readonly #texts: ReadonlyMap<number, string>;

  /** `compose` gives the statement around `values (…), (…)`; `types` are those of a key's columns. */
  constructor(types: readonly string[], compose: (values: string) => string) {
    this.#columns = types.length;
    const row = (index: number) =>
      `(${types.map((type, column) => `$${index * types.length + column + 1}::${type}`).join(', ')})`;
    const values = (size: number) =>
      `values ${Array.from({ length: size }, (_, index) => row(index)).join(', ')}`;
    this.#texts = new Map(SIZES.map((size) => [size, compose(values(size))]));
  }

  /** For 1 to {@link MAX_KEYS} keys. */
  of<Row>(keys: readonly (readonly unknown[])[]): CompiledQuery<Row> {
    const size = present(
      SIZES.find((each) => each >= keys.length),
      'no more keys than a statement takes',
    );
    const parameters: unknown[] = keys.flat();
    while (parameters.length < size * this.#columns) parameters.push(null);
    return CompiledQuery.raw(
      present(this.#texts.get(size), 'a text for each size'),
      parameters,
    ) as CompiledQuery<Row>;
  }
}
