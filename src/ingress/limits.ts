/** How much the ingress takes on. Per instance, so that one cannot use up all; and in all. */
export interface IngressLimits {
  /** Connections of one instance at once; more are closed at once. */
  readonly connections_per_instance: number;
  readonly connections: number;
  /** That wait for their VM; more are closed at once. */
  readonly held_per_instance: number;
  readonly held: number;
  /** Whose client has said nothing yet. Beyond that the oldest goes: a client that means it speaks at once. */
  readonly silent_per_instance: number;
  readonly silent: number;
  /** Kept of what a client sends while it is held. */
  readonly held_bytes: number;
  readonly dial_ms: number;
  readonly silent_ms: number;
  readonly held_ms: number;
  /** How long a revocation may be unconfirmed before the port closes. */
  readonly revoking_ms: number;
  /** How long connections wait at most for a key that was added. */
  readonly settling_ms: number;
  /** How often use is told of. */
  readonly report_ms: number;
}

export const LIMITS: IngressLimits = {
  connections_per_instance: 500,
  connections: 10_000,
  held_per_instance: 20,
  held: 500,
  silent_per_instance: 50,
  silent: 1_000,
  held_bytes: 16 * 1024,
  dial_ms: 5_000,
  silent_ms: 20_000,
  held_ms: 120_000,
  revoking_ms: 4_000,
  settling_ms: 4_000,
  report_ms: 5_000,
};

/** Connections in all, of every port. */
export class Totals {
  connections = 0;
  held = 0;
  /** Oldest first: the order of insertion. */
  readonly silent = new Set<{ destroy(): void }>();
}
