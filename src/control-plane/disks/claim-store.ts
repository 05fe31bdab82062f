/** Claims an object store that was away when the control plane started. Until then nothing in it is used. */
import type { MarkedStore } from '../../object-store/store-mark.ts';

export async function claimStore(store: MarkedStore): Promise<void> {
  await store.verified();
}
