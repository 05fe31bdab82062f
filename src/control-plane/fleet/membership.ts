/**
 * This control plane among those of the installation: says every 5 s that it lives, and knows the others that do. One that
 * nobody reaches (without BERTH_HOSTS_LISTEN, or without an address that others could dial) has no row, and only looks others up.
 */
import { randomBytes } from 'node:crypto';
import type { Log } from '../../shared/log.ts';
import { pause } from '../../shared/retry.ts';
import type { Db } from '../db/pool.ts';
import {
  type ControlPlane,
  deleteControlPlane,
  deleteEnded,
  listLive,
  noteAlive,
} from './control-plane-store.ts';
import { followReplacement } from './hosts-certificate.ts';

const BEAT_MS = 5_000;

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
