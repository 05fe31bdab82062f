/**
 * The connections of one port that may not have logged in yet. The guest's sshd accepts a bounded number of them, so idle
 * ones would block logins. Nothing reads the session: a connection is `early` until its client has sent as much as any
 * login needs, and `young` for as long as sshd waits for a login.
 *
 * Above the bound for early connections, the oldest of the source with the most is evicted, so that no source displaces
 * others. Young connections are bounded per source, which limits a client that sends data but never logs in.
 */
import type { Socket } from 'node:net';
import { sourceOf } from '../shared/connection-budget.ts';
import type { IngressLimits, Totals } from './limits.ts';

export class Newcomers {
  readonly #limits: IngressLimits;
  readonly #totals: Totals;
  /** By source, oldest first, with the time of arrival. */
  readonly #young = new Map<string, Map<Socket, number>>();
  readonly #early = new Map<string, Set<Socket>>();

  constructor(limits: IngressLimits, totals: Totals) {
    this.#limits = limits;
    this.#totals = totals;
  }

  /** False when its source has too many young connections. */
  take(socket: Socket): boolean {
    const source = sourceOf(socket.remoteAddress);
    const young = this.#youngOf(source);
    if (young.size >= this.#limits.young_per_source) {
      const oldest = this.#early.get(source)?.values().next().value;
      if (oldest === undefined) return false;
      this.#evict(oldest);
    }
    young.set(socket, performance.now());
    this.#young.set(source, young);
    this.#early.set(source, (this.#early.get(source) ?? new Set()).add(socket));
    this.#totals.early.add(socket);
    socket.once('close', () => this.#remove(source, socket));
    this.#evictBeyondLimits();
    return true;
  }

  /** Many connections are early, as in a burst. */
  get isCrowd(): boolean {
    let count = 0;
    for (const early of this.#early.values()) count += early.size;
    return count > this.#limits.crowd;
  }

  /** The client has sent as much as a login needs. */
  sentLogin(socket: Socket): void {
    for (const [source, early] of this.#early) if (early.has(socket)) this.#removeEarly(source, socket);
  }

  /** The connections of which sshd may still expect a login. */
  #youngOf(source: string): Map<Socket, number> {
    const young = this.#young.get(source) ?? new Map<Socket, number>();
    const since_ms = performance.now() - this.#limits.young_ms;
    for (const [socket, came_ms] of young) {
      if (came_ms > since_ms) break;
      young.delete(socket);
    }
    return young;
  }

  #evictBeyondLimits(): void {
    let count = 0;
    let most: Set<Socket> | undefined;
    for (const early of this.#early.values()) {
      count += early.size;
      if (early.size > (most?.size ?? 0)) most = early;
    }
    if (count > this.#limits.early_per_instance) this.#evict(most?.values().next().value);
    if (this.#totals.early.size > this.#limits.early) this.#evict(this.#totals.early.values().next().value);
  }

  #evict(socket: Socket | undefined): void {
    if (!socket) return;
    this.#totals.early.delete(socket);
    for (const source of this.#early.keys()) this.#removeEarly(source, socket);
    for (const young of this.#young.values()) young.delete(socket);
    socket.destroy();
  }

  #removeEarly(source: string, socket: Socket): void {
    const early = this.#early.get(source);
    if (!early?.delete(socket)) return;
    this.#totals.early.delete(socket);
    if (early.size === 0) this.#early.delete(source);
  }

  #remove(source: string, socket: Socket): void {
    this.#removeEarly(source, socket);
    const young = this.#young.get(source);
    young?.delete(socket);
    if (young?.size === 0) this.#young.delete(source);
  }
}
