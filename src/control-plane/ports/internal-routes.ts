/**
 * Routes of the internal API by which an ingress serves guests' ports. An ingress gets the routes of HTTP ports, asks
 * whether a client may use a port, redeems tickets, reports use, and gets the address of a guest's TCP port.
 *
 * `RouteChanges` answers polls for routes: with those that changed since the ingress's last answer, or with all routes
 * if the changes since then are not known.
 */
import { randomBytes } from 'node:crypto';
import type { FastifyInstance, FastifyReply } from 'fastify';
import { POLL_HOLD_MS } from '../../protocol/client.ts';
import type { OpenPortResult } from '../../protocol/host-calls.ts';
import {
  CHANGED_MAX,
  type HttpReport,
  type OpenPortRequest,
  type OpenPortResponse,
} from '../../protocol/ingress-types.ts';
import { ROUTES } from '../../protocol/routes.ts';
import { AppError } from '../../shared/errors.ts';
import type { InstanceId } from '../../shared/ids.ts';
import type { NotifyHub } from '../db/notify.ts';
import { type Tx, transaction } from '../db/pool.ts';
import { disconnectSignal } from '../http/connections.ts';
import { type InternalContext, serveIngress } from '../internal/serve.ts';
import { addHttpBytes } from '../usage/store.ts';
import { runningTarget } from '../vms/forward-stream.ts';
import { authoriseRequest, redeemTicket } from './authorise-request.ts';
import { listHttpRoutes, recordUse } from './store.ts';

export function registerHttpPorts(
  app: FastifyInstance,
  { db, http, metrics }: InternalContext,
  route_changes: RouteChanges,
): void {
  serveIngress(app, ROUTES.httpRoutes, ({ ingress, body, reply }) =>
    route_changes.answer(body, reply, (only) => listHttpRoutes(db, http, ingress.host_id, only)),
  );
  serveIngress(app, ROUTES.authoriseHttp, ({ body }) => authoriseRequest(db, http, body));
  serveIngress(app, ROUTES.redeemHttpTicket, async ({ body: { hostname, ticket } }) => {
    const redeemed = await transaction(db, (tx) => redeemTicket(tx, hostname, ticket));
    return redeemed ? { outcome: 'redeemed' as const, ...redeemed } : { outcome: 'refused' as const };
  });
  serveIngress(app, ROUTES.reportHttp, async ({ body }) => {
    await transaction(db, async (tx) => {
      await recordUse(tx, body);
      await addHttpBytes(tx, body.ports.map(bytesOf));
    });
    metrics?.ports.add(body);
    return {};
  });
}

function bytesOf({ port_id, sent_bytes, received_bytes }: HttpReport['ports'][number]) {
  return { port_id, bytes: sent_bytes + received_bytes };
}

/** Less than the ingress waits. */
const OPEN_MS = 5_000;

export function registerOpenPort(app: FastifyInstance, context: InternalContext): void {
  serveIngress(app, ROUTES.openPort, async ({ body, reply }) => {
    try {
      return await openPort(context, body, disconnectSignal(reply));
    } catch (error) {
      const code = error instanceof AppError ? error.code : null;
      if (code === 'BAD_GATEWAY') return { outcome: 'not_listening' as const };
      if (code === 'VM_NOT_RUNNING') return { outcome: 'not_running' as const };
      throw error;
    }
  });
}

async function openPort(
  { db, host_calls }: InternalContext,
  { instance_id, port }: OpenPortRequest,
  signal: AbortSignal,
): Promise<OpenPortResponse> {
  const place = await runningTarget(db, instance_id);
  if (!place) return { outcome: 'not_running' };
  const call = { kind: 'open_port', instance_id, vm_id: place.vm_id, port } as const;
  const { address } = await host_calls.ask<OpenPortResult>(place.host_id, call, OPEN_MS, signal);
  return { outcome: 'open', address };
}

const CATCH_UP_MS = 500;

interface Asked {
  readonly seen: string | null;
  readonly at_once?: boolean;
}
interface Answer<Route> {
  etag: string;
  changed?: InstanceId[];
  routes: Route[];
}

/**
 * Answers polls for routes: with those that have changed since the last answer, or with all if the changes are not known (the
 * ingress is new here, or notifications were lost).
 *
 * An etag counts the notifications that this process has heard on one connection to PostgreSQL. It is taken before the routes are
 * read, so an answer may be newer than its etag, never older.
 */
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
      // Without an id, any route may have changed.
      (id) => (id === '' ? this.#forget() : this.#add(id as InstanceId)),
      () => this.#forget(),
    );
  }

  /** `list` reads the routes of these instances; of all where it gets null. */
  async answer<Route>(
    { seen, at_once = false }: Asked,
    reply: FastifyReply,
    list: (only: readonly InstanceId[] | null) => Promise<Route[]>,
  ): Promise<Answer<Route>> {
    const read = async (): Promise<Answer<Route>> => {
      const etag = this.#etag;
      const changed = this.#since(seen);
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
