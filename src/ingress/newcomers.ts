/**
 * The connections of one port that may not have logged in yet. The guest's sshd takes a bounded number of those, so that
 * half-open ones would keep others out. No session is read here: a connection is `early` until its client has sent as
 * much as any login takes, and `young` for as long as sshd waits for a login.
 *
 * Early ones are bounded: past that the oldest goes, of the source that has most, so that nobody pushes out others. A
 * source has so many young ones and no more: whoever sends enough and does not log in takes no more than that.
 */
import type { Socket } from 'node:net';
import { firstGroups } from '../lib/ipv6.ts';
import type { IngressLimits, Totals } from './limits.ts';

const GROUPS_OF_A_NETWORK = 4;

export class Newcomers {
  readonly #limits: IngressLimits;
  readonly #totals: Totals;
  /** By source, oldest first; and when they came. */
  readonly #young = new Map<string, Map<Socket, number>>();
  readonly #early = new Map<string, Set<Socket>>();

  constructor(limits: IngressLimits, totals: Totals) {
    this.#limits = limits;
    this.#totals = totals;
  }

  /** False: its source has enough of them. */
  take(socket: Socket): boolean {
    const source = sourceOf(socket.remoteAddress);
    const young = this.#youngOf(source);
    if (young.size >= this.#limits.young_per_source) {
      const oldest = this.#early.get(source)?.values().next().value;
      if (oldest === undefined) return false;
      this.#end(oldest);
    }
    young.set(socket, performance.now());
    this.#young.set(source, young);
    this.#early.set(source, (this.#early.get(source) ?? new Set()).add(socket));
    this.#totals.early.add(socket);
    socket.once('close', () => this.#forget(source, socket));
    this.#makeRoom();
    return true;
  }

  /** So many are early that some may have to go. */
  get isCrowd(): boolean {
    let count = 0;
    for (const early of this.#early.values()) count += early.size;
    return count > this.#limits.crowd;
  }

  /** Its client has sent as much as a login takes. */
  sentEnough(socket: Socket): void {
    for (const [source, early] of this.#early) if (early.has(socket)) this.#noEarly(source, socket);
  }

  /** Those that sshd still waits for, or may. */
  #youngOf(source: string): Map<Socket, number> {
    const young = this.#young.get(source) ?? new Map<Socket, number>();
    const since_ms = performance.now() - this.#limits.young_ms;
    for (const [socket, came_ms] of young) {
      if (came_ms > since_ms) break;
      young.delete(socket);
    }
    return young;
  }

  #makeRoom(): void {
    let count = 0;
    let most: Set<Socket> | undefined;
    for (const early of this.#early.values()) {
      count += early.size;
      if (early.size > (most?.size ?? 0)) most = early;
    }
    if (count > this.#limits.early_per_instance) this.#end(most?.values().next().value);
    if (this.#totals.early.size > this.#limits.early) this.#end(this.#totals.early.values().next().value);
  }

  #end(socket: Socket | undefined): void {
    if (!socket) return;
    this.#totals.early.delete(socket);
    for (const source of this.#early.keys()) this.#noEarly(source, socket);
    for (const young of this.#young.values()) young.delete(socket);
    socket.destroy();
  }

  #noEarly(source: string, socket: Socket): void {
    const early = this.#early.get(source);
    if (!early?.delete(socket)) return;
    this.#totals.early.delete(socket);
    if (early.size === 0) this.#early.delete(source);
  }

  #forget(source: string, socket: Socket): void {
    this.#noEarly(source, socket);
    const young = this.#young.get(source);
    young?.delete(socket);
    if (young?.size === 0) this.#young.delete(source);
  }
}

/** An address, or of IPv6 the network that one customer has: addresses of it cost nothing. */
export function sourceOf(address = ''): string {
  const mapped = /^::ffff:([0-9.]+)$/i.exec(address)?.[1];
  if (mapped !== undefined) return mapped;
  return address.includes(':') ? firstGroups(address.replace(/%.*$/, ''), GROUPS_OF_A_NETWORK) : address;
}
