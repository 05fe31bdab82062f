/**
 * Sends requests that carry items of several instances to the control plane, so that one bad item does not hold up the others.
 *
 *   item ──fits its schema──▶ request ──▶ accepted
 *     └──no──▶ dropped           └──refused──▶ its halves, down to the item that is refused ──▶ dropped
 *
 * - Every request of this kind goes through a {@link BatchSender}, which checks each item by the receiver's schema.
 * - A refused item is dropped and logged once. The same sender does not send it again unchanged.
 * - While the control plane is unreachable or refuses the credential, nothing is dropped: the caller keeps the items.
 */
import type { TSchema } from 'typebox';
import type { Log } from '../shared/log.ts';
import { untrustedText } from '../shared/untrusted-text.ts';
import { RequestRefused } from './client.ts';
import { ROUTES } from './routes.ts';
import { type Of, violationOf } from './schemas.ts';

export interface Batch<Item extends TSchema> {
  /** Of one item, for the log. */
  readonly kind: string;
  /** The receiver's schema of one item. */
  readonly item: Item;
  /** In one request. */
  readonly most: number;
  /** Which item it is, for the log. */
  readonly nameOf: (item: Of<Item>) => unknown;
}

function batch<Item extends TSchema>(
  kind: string,
  { items: item, maxItems }: { readonly items: Item; readonly maxItems?: number },
  most: number,
  nameOf: (item: Of<Item>) => unknown,
): Batch<Item> {
  return { kind, item, most: Math.min(most, maxItems ?? most), nameOf };
}

const instanceOf = ({ instance_id }: { readonly instance_id: string }) => instance_id;

/** By route. test/protocol/batches.test.ts names the other requests with lists, and why each of them is one whole. */
export const BATCHES = {
  heartbeat: batch('disk', ROUTES.heartbeat.request.properties.disks, 20_000, instanceOf),
  logins: batch('login', ROUTES.logins.request.properties.fingerprints, 1_000, (fingerprint) => fingerprint),
  minutes: batch('minute', ROUTES.minutes.request.properties.minutes, 1_000, instanceOf),
  denied: batch('denied attempt', ROUTES.denied.request.properties.denials, 1_000, instanceOf),
  execs: batch('exec', ROUTES.execs.request.properties.execs, 200, ({ exec_id }) => exec_id),
  offerImages: batch('image', ROUTES.offerImages.request.properties.images, 1_000, ({ version }) => version),
  objectPermissions: batch(
    'object',
    ROUTES.objectPermissions.request.properties.objects,
    64,
    ({ key }) => key,
  ),
  routes: batch(
    'SSH address',
    ROUTES.routes.request.properties.blocked,
    // A request is held until routes change, so there is one.
    1_000_000,
    ({ host, port }) => `${host}:${port}`,
  ),
  activity: batch('port in use', ROUTES.activity.request.properties.active, 10_000, instanceOf),
  reportHttp: batch(
    'HTTP port',
    ROUTES.reportHttp.request.properties.ports,
    10_000,
    ({ port_id }) => port_id,
  ),
} as const;

/** After so many refused items in one report the rest waits for the next one, which is sent without them. */
const FOUND_MAX = 16;
/** Dropped items that are remembered; the oldest are forgotten. */
const REMEMBERED_MAX = 1_000;

export interface Sending<Item> {
  /** Sends one request. Called at least once, also without any item: a request may say more than its items. */
  readonly post: (items: readonly Item[]) => Promise<unknown>;
  /** These have arrived, or were dropped. */
  readonly settled?: (items: readonly Item[]) => void;
}

export class BatchSender<Item extends TSchema> {
  readonly #batch: Batch<Item>;
  readonly #log: Pick<Log, 'warn'>;
  /** By name: the last content that was dropped. */
  readonly #dropped = new Map<string, string>();

  constructor(batch: Batch<Item>, log: Pick<Log, 'warn'>) {
    this.#batch = batch;
    this.#log = log;
  }

  /**
   * @throws what `post` throws, also RequestRefused where it is not an item's fault, or of too many: what was not settled by then is to
   * be sent again
   */
  async send(
    items: readonly Of<Item>[],
    { post, settled = () => undefined }: Sending<Of<Item>>,
  ): Promise<void> {
    const fit = items.filter((item) => this.#mayBeSent(item));
    if (fit.length < items.length) {
      const kept = new Set(fit);
      settled(items.filter((item) => !kept.has(item)));
    }
    let found = 0;
    const sendAll = async (some: readonly Of<Item>[]): Promise<void> => {
      try {
        await post(some);
        for (const item of some) this.#dropped.delete(this.#nameOf(item));
      } catch (error) {
        const [item] = some;
        if (!(error instanceof RequestRefused) || item === undefined || found === FOUND_MAX) throw error;
        if (some.length > 1) {
          const half = Math.ceil(some.length / 2);
          await sendAll(some.slice(0, half));
          return sendAll(some.slice(half));
        }
        // Refused without it, too, it is the fault of the rest of the request.
        await post([]);
        found += 1;
        this.#drop(item, error.message);
      }
      settled(some);
    };
    const { most } = this.#batch;
    for (let at = 0; at === 0 || at < fit.length; at += most) await sendAll(fit.slice(at, at + most));
  }

  #mayBeSent(item: Of<Item>): boolean {
    const problem = violationOf(this.#batch.item, item);
    if (problem !== null) this.#drop(item, problem);
    return problem === null && this.#dropped.get(this.#nameOf(item)) !== JSON.stringify(item);
  }

  #nameOf(item: Of<Item>): string {
    return untrustedText(this.#batch.nameOf(item));
  }

  #drop(item: Of<Item>, problem: string): void {
    const { kind } = this.#batch;
    const id = this.#nameOf(item);
    const is_logged = this.#dropped.has(id);
    this.#dropped.set(id, JSON.stringify(item));
    for (const oldest of this.#dropped.keys()) {
      if (this.#dropped.size <= REMEMBERED_MAX) break;
      this.#dropped.delete(oldest);
    }
    if (is_logged) return;
    this.#log.warn(
      { kind, id, reason: untrustedText(problem) },
      `a report of one ${kind} is dropped; the others are sent`,
    );
  }
}
