import type { Socket } from 'node:net';

/** How much the ingress takes on. Per instance, so that one cannot use up all; and in all. */
export interface IngressLimits {
  /** Connections of one instance at once; more are closed at once. */
  readonly connections_per_instance: number;
  readonly connections: number;
  /** That wait for their VM; more are closed at once. */
  readonly held_per_instance: number;
  readonly held: number;
  /** Whose client has not sent `login_bytes` yet. Beyond that the oldest goes, of the source that has most. */
  readonly early_per_instance: number;
  readonly early: number;
  /**
   * Where more are early than this, newcomers go on to the guest only after `crowd_ms`: each costs its sshd a process, and
   * most of a burst are gone by then.
   */
  readonly crowd: number;
  readonly crowd_ms: number;
  /** What any client has sent by the time that it is logged in: its key exchange alone is more. */
  readonly login_bytes: number;
  /** Of one source at one instance, as old as that sshd may still wait for their logins; more are closed at once. */
  readonly young_per_source: number;
  readonly young_ms: number;
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
  // Below MaxStartups of the guest's sshd, which begins to turn away at 50.
  early_per_instance: 20,
  early: 1_000,
  crowd: 8,
  crowd_ms: 250,
  login_bytes: 1_024,
  young_per_source: 40,
  // LoginGraceTime of the guest's sshd.
  young_ms: 60_000,
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
  readonly early = new Set<Socket>();
}
