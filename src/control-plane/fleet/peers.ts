/**
 * Calls hosts that poll another control plane (B) than the one that the caller is connected to (A):
 *
 *   caller ─▶ A: the call waits ── NOTIFY (host, A) ──▶ B takes the call from A, and passes it on to the host
 *   host ─▶ any control plane: answer or stream ── the call's id names A ──▶ A ─▶ caller
 *
 * - A control plane authenticates to another by a token, which is derived from the root key and the other's id.
 * - B keeps the hint of the NOTIFY until it takes no more calls from A, so a host that polls B a moment later gets the
 *   call.
 * - `Membership` says every 5 s that this control plane lives, and knows the others that do.
 */
import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto';
import type { IncomingHttpHeaders } from 'node:http';
import type { Duplex } from 'node:stream';
import type { TSchema } from 'typebox';
import { Agent, request, upgrade } from 'undici';
import { pinnedConnector } from '../../protocol/control-planes.ts';
import { type CallAnswer, CONSOLE_PROTOCOL, type PendingCall } from '../../protocol/host-calls.ts';
import { type ListedControlPlane, peerStreamPath } from '../../protocol/ingress-types.ts';
import { AGENT_PROTOCOL, PROTOCOL_HEADER } from '../../protocol/protocol.ts';
import { type AgentRoute, ROUTES } from '../../protocol/routes.ts';
import { answerViolationOf, type Of } from '../../protocol/schemas.ts';
import { AppError } from '../../shared/errors.ts';
import type { HostId } from '../../shared/ids.ts';
import type { Log } from '../../shared/log.ts';
import { pause } from '../../shared/retry.ts';
import { deriveKey } from '../../shared/seal.ts';
import { joinStreams } from '../../shared/streams.ts';
import { type NotifyHub, notify } from '../db/notify.ts';
import type { Db } from '../db/pool.ts';
import {
  type ControlPlane,
  deleteControlPlane,
  deleteEnded,
  listLive,
  noteAlive,
} from './control-plane-store.ts';
import { followReplacement } from './hosts-certificate.ts';

/** What calls to hosts need of the installation's other control planes. {@link Peers} has it; without others, {@link noOthers}. */
export interface OtherControlPlanes {
  /** This control plane's own id, 12 hexadecimal digits: ids of its calls begin with it. */
  readonly id: string;
  /** Tells the others that a call for the host waits here. */
  tell(host_id: HostId): void;
  /** Calls `listener` when another tells so. */
  onTold(listener: (host_id: HostId) => void): void;
  /** Takes the calls that wait at the others, of which they have told. */
  take(host_id: HostId): Promise<PendingCall[]>;
  /** Confirms that the host got calls of the others. */
  confirm(host_id: HostId, call_ids: readonly string[]): Promise<void>;
  /** Passes on the answer to another's call; false: its caller no longer waits. */
  answer(host_id: HostId, call_id: string, answer: CallAnswer): Promise<boolean>;
  /** The same with a stream. It is accepted once the other's caller has it: the host's answer may follow at once. */
  connect(host_id: HostId, call_id: string, accept: () => Duplex): Promise<boolean>;
  /** The host's agent was restarted: it will not answer calls that it had taken. */
  failTaken(host_id: HostId): Promise<void>;
}

/** The id of the control plane that a call's id names. */
export function askerOf(call_id: string): string {
  return call_id.slice(0, 8) + call_id.slice(9, 13);
}

/** A new id for a call: a UUID that begins with the control plane's id. */
export function newCallId(control_plane_id: string, random: string): string {
  return `${control_plane_id.slice(0, 8)}-${control_plane_id.slice(8)}${random.slice(13)}`;
}

/** For a control plane without others. */
export function noOthers(): OtherControlPlanes {
  return {
    id: randomBytes(6).toString('hex'),
    tell: () => undefined,
    onTold: () => undefined,
    take: async () => [],
    confirm: async () => undefined,
    answer: async () => false,
    connect: async () => false,
    failTaken: async () => undefined,
  };
}

/** Less than a call waits to be taken. */
const ANSWER_MS = 4_000;

/** Calls another control plane's internal API: JSON over TLS, to the certificate of its row, with a token for it alone. */
class PeerClient {
  readonly #url: string;
  readonly #token: string;
  readonly #agent: Agent;
  readonly #streams: Agent;

  constructor({ url, fingerprint }: ControlPlane, token: string) {
    const connect = pinnedConnector(fingerprint);
    this.#url = url;
    this.#token = token;
    this.#agent = new Agent({ connect, connections: 16 });
    // Each upgrade keeps its connection.
    this.#streams = new Agent({ connect });
  }

  /** @throws AppError UNAVAILABLE */
  async post<Request extends TSchema, Response extends TSchema>(
    { path, response: schema }: AgentRoute<Request, Response>,
    body: Of<Request>,
  ): Promise<Of<Response>> {
    try {
      const response = await request(this.#url + path, {
        method: 'POST',
        dispatcher: this.#agent,
        headers: { ...this.#headers(), 'content-type': 'application/json' },
        body: JSON.stringify(body),
        signal: AbortSignal.timeout(ANSWER_MS),
      });
      const text = await response.body.text();
      if (response.statusCode !== 200)
        throw new Error(`status ${response.statusCode}: ${text.slice(0, 300)}`);
      const answer: unknown = JSON.parse(text);
      const problem = answerViolationOf(schema, answer);
      if (problem !== null) throw new Error(`its answer cannot be read: ${problem}`);
      return answer as Of<Response>;
    } catch (cause) {
      throw unavailable(cause);
    }
  }

  /** The caller must end it. @throws AppError UNAVAILABLE */
  async openStream(path: string): Promise<Duplex> {
    try {
      const { socket } = await upgrade(this.#url + path, {
        dispatcher: this.#streams,
        headers: this.#headers(),
        protocol: CONSOLE_PROTOCOL,
        signal: AbortSignal.timeout(ANSWER_MS),
      });
      return socket;
    } catch (cause) {
      throw unavailable(cause);
    }
  }

  async close(): Promise<void> {
    await this.#streams.destroy();
    await this.#agent.destroy();
  }

  #headers() {
    return { authorization: `Bearer ${this.#token}`, [PROTOCOL_HEADER]: String(AGENT_PROTOCOL) };
  }
}

function unavailable(cause: unknown): AppError {
  return new AppError('UNAVAILABLE', {
    message: 'Another control plane does not answer.',
    retry_after_seconds: 2,
    cause,
  });
}

export interface PeersOptions {
  readonly membership: Membership;
  readonly root_key: Uint8Array;
  readonly db: Db;
  readonly hub: NotifyHub;
  readonly log: Log;
}

export class Peers implements OtherControlPlanes {
  readonly #options: PeersOptions;
  readonly #key: Buffer;
  /** By host: the control planes that have told of calls for it. */
  readonly #hints = new Map<HostId, Set<string>>();
  readonly #clients = new Map<string, PeerClient>();

  constructor(options: PeersOptions) {
    this.#options = options;
    this.#key = deriveKey(options.root_key, 'berth control planes v1');
  }

  get id(): string {
    return this.#options.membership.id;
  }

  /** The live control planes, for hosts and ingresses; those that are to show another certificate also with that one. */
  get places(): readonly ListedControlPlane[] {
    const { live, next_fingerprint } = this.#options.membership;
    const now = live.map(({ url, fingerprint }) => ({ url, fingerprint }));
    if (next_fingerprint === null) return now;
    const still = now.filter(({ fingerprint }) => fingerprint !== next_fingerprint);
    return [...now, ...still.map(({ url }) => ({ url, fingerprint: next_fingerprint }))];
  }

  /** Whether a request comes from another control plane. */
  isPeer({ authorization = '' }: IncomingHttpHeaders): boolean {
    const wanted = Buffer.from(`Bearer ${this.#tokenFor(this.id)}`);
    const given = Buffer.from(authorization);
    return given.length === wanted.length && timingSafeEqual(given, wanted);
  }

  tell(host_id: HostId): void {
    const { membership, db, log } = this.#options;
    if (membership.peers.length === 0) return;
    notify(db, 'calls', `${host_id} ${this.id}`).catch((error: unknown) =>
      log.debug({ err: error }, 'the other control planes could not be told of a call'),
    );
  }

  onTold(listener: (host_id: HostId) => void): void {
    this.#options.hub.listen('calls', (told) => {
      const [host_id = '', from = ''] = told.split(' ');
      if (from === this.id) return;
      this.#hintsOf(host_id as HostId).add(from);
      listener(host_id as HostId);
    });
  }

  async take(host_id: HostId): Promise<PendingCall[]> {
    for (const from of [...(this.#hints.get(host_id) ?? [])]) {
      // A hint that comes during the pull counts for the next one.
      this.#forget(host_id, from);
      try {
        const peer = await this.#peer(from);
        const { calls = [] } = (await peer?.post(ROUTES.peerTake, { host_id })) ?? {};
        if (calls.length === 0) continue;
        this.#hintsOf(host_id).add(from);
        return [...calls];
      } catch (error) {
        this.#options.log.warn({ err: error, from }, 'calls could not be taken from another control plane');
      }
    }
    return [];
  }

  async confirm(host_id: HostId, call_ids: readonly string[]): Promise<void> {
    for (const [from, ids] of Map.groupBy(call_ids, askerOf)) {
      const peer = await this.#peer(from);
      await peer?.post(ROUTES.peerConfirm, { host_id, call_ids: ids });
    }
  }

  async answer(host_id: HostId, id: string, answer: CallAnswer): Promise<boolean> {
    const peer = await this.#peer(askerOf(id));
    if (!peer) return false;
    const { outcome } = await peer.post(ROUTES.peerAnswer, { host_id, id, answer: answer as never });
    return outcome === 'accepted';
  }

  async connect(host_id: HostId, id: string, accept: () => Duplex): Promise<boolean> {
    const peer = await this.#peer(askerOf(id));
    if (!peer) return false;
    const line = await peer.openStream(peerStreamPath(host_id, id));
    joinStreams(accept(), line);
    return true;
  }

  /** Those that do not answer are about to end, with their calls. */
  async failTaken(host_id: HostId): Promise<void> {
    const telling = this.#options.membership.peers.map(async ({ id }) =>
      (await this.#peer(id))?.post(ROUTES.peerFailTaken, { host_id }),
    );
    await Promise.allSettled(telling);
  }

  async close(): Promise<void> {
    const clients = [...this.#clients.values()];
    this.#clients.clear();
    await Promise.all(clients.map((client) => client.close()));
  }

  /** Undefined when it has ended. */
  async #peer(id: string): Promise<PeerClient | undefined> {
    const { membership } = this.#options;
    const found = await membership.find(id);
    const client = this.#clients.get(id);
    if (found && id !== this.id) {
      const kept = client ?? new PeerClient(found, this.#tokenFor(id));
      this.#clients.set(id, kept);
      return kept;
    }
    this.#clients.delete(id);
    await client?.close();
    return undefined;
  }

  #tokenFor(id: string): string {
    return createHmac('sha256', this.#key).update(id).digest('base64url');
  }

  #hintsOf(host_id: HostId): Set<string> {
    const known = this.#hints.get(host_id) ?? new Set();
    this.#hints.set(host_id, known);
    return known;
  }

  #forget(host_id: HostId, from: string): void {
    const known = this.#hints.get(host_id);
    known?.delete(from);
    if (known?.size === 0) this.#hints.delete(host_id);
  }
}

const BEAT_MS = 5_000;

/**
 * This control plane among those of the installation: says every 5 s that it lives, and knows the others that do. One that
 * nobody reaches (without BERTH_HOSTS_LISTEN, or without an address that others could dial) has no row, and only looks
 * others up.
 */
export class Membership {
  /** New for each process, because its calls end with it. */
  readonly id = randomBytes(6).toString('hex');
  readonly #db: Db;
  readonly #log: Log;
  readonly #self: ControlPlane | null;
  #live: readonly ControlPlane[] = [];
  #next_fingerprint: string | null = null;

  /** `place` is null if nobody reaches it. */
  constructor(place: Omit<ControlPlane, 'id'> | null, { db, log }: { readonly db: Db; readonly log: Log }) {
    this.#db = db;
    this.#log = log;
    this.#self = place && { id: this.id, ...place };
  }

  /** All that live, as of some seconds ago. */
  get live(): readonly ControlPlane[] {
    return this.#live;
  }

  /** Of the certificate that replaces the one that hosts pin; null: it is not being replaced. */
  get next_fingerprint(): string | null {
    return this.#next_fingerprint;
  }

  /** The others that could take calls from here. */
  get peers(): readonly ControlPlane[] {
    return this.#self === null ? [] : this.#live.filter(({ id }) => id !== this.id);
  }

  /** Another one, also one that has just started. */
  async find(id: string): Promise<ControlPlane | undefined> {
    return (
      this.#live.find((each) => each.id === id) ?? (await listLive(this.#db)).find((each) => each.id === id)
    );
  }

  /** Beats until `signal` aborts, the first time at once. */
  async run(signal: AbortSignal): Promise<void> {
    if (this.#self === null) return;
    do {
      await this.beat().catch((error: unknown) =>
        this.#log.warn({ err: error }, 'the other control planes cannot be told that this one lives'),
      );
    } while (await pause(BEAT_MS, signal));
    await deleteControlPlane(this.#db, this.id).catch(() => undefined);
  }

  async beat(): Promise<void> {
    if (this.#self === null) return;
    await noteAlive(this.#db, this.#self);
    await deleteEnded(this.#db, this.#self);
    const live = await listLive(this.#db);
    const { present, next } = await followReplacement(this.#db, live);
    this.#next_fingerprint = next;
    // One that was away while the others finished a replacement. Hosts must not trust the old certificate again.
    this.#live = present === null ? live : live.filter((each) => [present, next].includes(each.fingerprint));
    if (!this.#live.some(({ id }) => id === this.id))
      this.#log.error('this control plane shows hosts a certificate that was replaced: restart it');
  }
}
