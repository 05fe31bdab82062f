/**
 * Calls to hosts that are connected to another control plane of the installation than the caller.
 *
 *   caller ─▶ A: the call waits ── NOTIFY (host, A) ──▶ B, which has the host's poll, pulls it from A and hands it to the host
 *   host ─▶ any: answer or stream ── the call's id names A ──▶ A ─▶ caller
 *
 * A control plane proves itself to another by a token that is derived from the root key and the other's id. Hints are kept
 * until a pull finds nothing, so a host that comes to poll here a moment later gets the call, too.
 */
import { createHmac, timingSafeEqual } from 'node:crypto';
import type { IncomingHttpHeaders } from 'node:http';
import type { Duplex } from 'node:stream';
import type { CallAnswer, PendingCall } from '../../protocol/host-calls.ts';
import { joinStreams } from '../../protocol/join-streams.ts';
import { type ControlPlanePlace, peerStreamPath } from '../../protocol/peer-types.ts';
import { ROUTES } from '../../protocol/routes.ts';
import type { HostId } from '../../shared/ids.ts';
import type { Log } from '../../shared/log.ts';
import { deriveKey } from '../../shared/seal.ts';
import { type NotifyHub, notify } from '../db/notify.ts';
import type { Db } from '../db/pool.ts';
import type { Membership } from './membership.ts';
import { askerOf, type OtherControlPlanes } from './other-control-planes.ts';
import { PeerClient } from './peer-client.ts';

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
  get places(): readonly ControlPlanePlace[] {
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

  async take(host_id: HostId, protocol: number): Promise<PendingCall[]> {
    for (const from of [...(this.#hints.get(host_id) ?? [])]) {
      // A hint that comes during the pull counts for the next one.
      this.#forget(host_id, from);
      try {
        const peer = await this.#peer(from);
        const { calls = [] } = (await peer?.post(ROUTES.peerTake, { host_id, protocol })) ?? {};
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
