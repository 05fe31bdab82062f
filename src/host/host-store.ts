/**
 * Opens the object store for a host: reads and writes fail until the store was found to have the mark that the control
 * plane names (object-store/store-mark.ts). The control plane writes the mark, so a host that starts together with it
 * waits a moment.
 */
import { type ObjectStore, ObjectStoreUnavailableError } from '../object-store/object-store.ts';
import { PermittedStore } from '../object-store/permitted-store.ts';
import { NotPermittedYetError } from '../object-store/s3-requests.ts';
import { MarkedStore, otherStore, readMark, unmarkedStore } from '../object-store/store-mark.ts';
import { BATCHES, BatchSender } from '../protocol/batches.ts';
import { type ControlPlaneClient, ControlPlaneUnavailable } from '../protocol/client.ts';
import type { ObjectRequest, SignedRequest } from '../protocol/types.ts';
import type { Log } from '../shared/log.ts';
import { backoffMs, pause } from '../shared/retry.ts';

const WAIT_MS = 5_000;

/** The store of a host without credentials for the bucket: the control plane signs its requests. */
export function permittedStore(
  client: Pick<ControlPlaneClient, 'objectPermissions'>,
  log: Pick<Log, 'warn'>,
): PermittedStore {
  return new PermittedStore(async (objects) => {
    const signed = new Map<ObjectRequest, SignedRequest | null>();
    const post = async (some: readonly ObjectRequest[]) => {
      const { permissions } = await client.objectPermissions({ objects: some });
      for (const [at, object] of some.entries()) signed.set(object, permissions[at] ?? null);
    };
    try {
      // A new sender: a question, other than a report, may be asked again.
      await new BatchSender(BATCHES.objectPermissions, log).send(objects, { post });
      return objects.map((object) => signed.get(object) ?? null);
    } catch (error) {
      if (error instanceof ControlPlaneUnavailable) throw new NotPermittedYetError(error.message);
      throw error;
    }
  });
}

export function hostStore(client: Pick<ControlPlaneClient, 'objectStore'>, store: ObjectStore): MarkedStore {
  return new MarkedStore(store, async () => {
    const id = await namedMark(client, store);
    const there = await readMark(store);
    if (there === null) throw unmarkedStore(store);
    if (there !== id) throw otherStore(store);
  });
}

async function namedMark(
  client: Pick<ControlPlaneClient, 'objectStore'>,
  store: ObjectStore,
): Promise<string> {
  const until_ms = performance.now() + WAIT_MS;
  for (let attempt = 0; ; attempt++) {
    const id = await ask(client);
    if (id !== null) return id;
    if (performance.now() > until_ms) {
      const reason = 'the control plane has not named its object store yet';
      throw new ObjectStoreUnavailableError(`${store.description}: ${reason}`, { reason });
    }
    await pause(backoffMs(attempt, 100, 500));
  }
}

async function ask(client: Pick<ControlPlaneClient, 'objectStore'>): Promise<string | null> {
  try {
    return (await client.objectStore()).mark;
  } catch (error) {
    if (error instanceof ControlPlaneUnavailable) return null;
    throw error;
  }
}
