/**
 * Polls of ingresses for routes. A poll is answered with the routes that have changed since the last answer, or with all where those
 * are not known: the ingress is new here, or of the previous version, or notifications were lost.
 *
 * An etag counts the notifications that this process has heard on one connection to PostgreSQL. It is taken before the routes are
 * read, so an answer may be newer than its etag, never older.
 */
import { randomBytes } from 'node:crypto';
import type { FastifyReply } from 'fastify';
import { POLL_HOLD_MS } from '../../protocol/client.ts';
import { CHANGED_MAX } from '../../protocol/ingress-types.ts';
import type { InstanceId } from '../../shared/ids.ts';
import type { NotifyHub } from '../db/notify.ts';
import type { Tx } from '../db/pool.ts';
import { disconnectSignal } from '../http/connections.ts';

const CATCH_UP_MS = 500;

interface Asked {
  readonly seen: string | null;
  readonly changes_only?: boolean;
  readonly at_once?: boolean;
}
interface Answer<Route> {
  etag: string;
  changed?: InstanceId[];
  routes: Route[];
}

export class RouteChanges {
  readonly #db: Tx;
  readonly #hub: NotifyHub;
  #connection = '';
  /** The instances of the newest notifications, oldest first, and how many came before. */
  #changed: InstanceId[] = [];
  #before = 0;

  constructor(db: Tx, hub: NotifyHub) {
    this.#db = db;
    this.#hub = hub;
    this.#forget();
    hub.listen(
      'routes',
      // Without an id, as the previous version sends it: any route may have changed.
      (id) => (id === '' ? this.#forget() : this.#add(id as InstanceId)),
      () => this.#forget(),
    );
  }

  /** `list` reads the routes of these instances; of all where it gets null. */
  async answer<Route>(
    { seen, changes_only = false, at_once = false }: Asked,
    reply: FastifyReply,
    list: (only: readonly InstanceId[] | null) => Promise<Route[]>,
  ): Promise<Answer<Route>> {
    const read = async (): Promise<Answer<Route>> => {
      const etag = this.#etag;
      const changed = changes_only ? this.#since(seen) : null;
      if (changed === null) return { etag, routes: await list(null) };
      return { etag, changed, routes: changed.length === 0 ? [] : await list(changed) };
    };
    if (at_once) {
      if (!(await this.#hub.caughtUp(this.#db, CATCH_UP_MS))) this.#forget();
      return read();
    }
    const look = async () => (seen === this.#etag ? undefined : read());
    const gone = disconnectSignal(reply);
    return (await this.#hub.waitFor('routes', null, POLL_HOLD_MS, look, gone)) ?? read();
  }

  get #etag(): string {
    return `${this.#connection}.${this.#before + this.#changed.length}`;
  }

  #forget(): void {
    this.#connection = randomBytes(9).toString('base64url');
    this.#changed = [];
    this.#before = 0;
  }

  #add(id: InstanceId): void {
    this.#changed.push(id);
    if (this.#changed.length <= 2 * CHANGED_MAX) return;
    this.#changed = this.#changed.slice(CHANGED_MAX);
    this.#before += CHANGED_MAX;
  }

  /** Null: too many, or not known. */
  #since(seen: string | null): InstanceId[] | null {
    const [connection, count] = seen?.split('.') ?? [];
    const from = Number(count) - this.#before;
    if (connection !== this.#connection || !(from >= 0)) return null;
    const changed = [...new Set(this.#changed.slice(from))];
    return changed.length > CHANGED_MAX ? null : changed;
  }
}
