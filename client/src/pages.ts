/** Lists: each page is fetched when it is needed. */
import type { Answer, CallOptions, Input, OperationId, Transport } from './transport.ts';

/** Operations whose answer is a page of a list. */
export type ListOperation = {
  [K in OperationId]: Answer<K> extends { data: readonly unknown[]; next_cursor: string | null } ? K : never;
}[OperationId];
export type ItemOf<K extends OperationId> =
  Answer<K> extends { data: readonly (infer Item)[] } ? Item : never;

export async function* itemsOf<K extends ListOperation>(
  transport: Transport,
  operation: K,
  input: Input<K>,
  options?: CallOptions,
): AsyncGenerator<ItemOf<K>, void, undefined> {
  type Page = { data: ItemOf<K>[]; next_cursor: string | null };
  for (let cursor: string | null = null; ; ) {
    const query = { ...(input as { query?: object }).query, ...(cursor === null ? {} : { cursor }) };
    const page = (await transport.call(operation, { ...input, query } as Input<K>, options)) as Page;
    yield* page.data;
    cursor = page.next_cursor;
    if (cursor === null) return;
  }
}
