/** Limits of SSH connections: in all, of one address, of one instance. */
import type { Socket } from 'node:net';
import {
  ConnectionBudget,
  type ConnectionBudgetOptions,
  filesForConnections,
} from '../shared/connection-budget.ts';

/**
 * Limits of the ingress: per instance, so that one cannot exhaust it, and in total. Many instances of one owner could reach a
 * total, so it does not refuse an instance that has few.
 */
export interface IngressLimits {
  /** Open connections of one instance; further ones are closed at once. */
  readonly connections_per_instance: number;
  readonly connections: number;
  /** Connections that wait for their VM; further ones are closed at once. */
  readonly held_per_instance: number;
  readonly held: number;
  /** Connections of an instance, and held ones, that no total refuses. */
  readonly assured_per_instance: number;
  /** Connections whose client has not sent `login_bytes` yet. Beyond that the oldest of the busiest source is evicted. */
  readonly early_per_instance: number;
  readonly early: number;
  /**
   * With more early connections than this, new ones reach the guest only after `crowd_ms`: each costs its sshd a process,
   * and most of a burst has already disconnected.
   */
  readonly crowd: number;
  readonly crowd_ms: number;
  /** Less than any client sends before it is logged in: the key exchange alone is more. */
  readonly login_bytes: number;
  /** Connections of one source to one instance that may still wait for a login; further ones are closed at once. */
  readonly young_per_source: number;
  readonly young_ms: number;
  /** How much a held connection buffers. */
  readonly held_bytes: number;
  readonly dial_ms: number;
  readonly silent_ms: number;
  readonly held_ms: number;
  /** How long a revocation may be unconfirmed before the port closes. */
  readonly revoking_ms: number;
  /** How long connections wait at most for an added key. */
  readonly settling_ms: number;
  /** The interval of activity reports. */
  readonly report_ms: number;
}

export const LIMITS: IngressLimits = {
  connections_per_instance: 500,
  connections: 10_000,
  held_per_instance: 20,
  held: 500,
  assured_per_instance: 8,
  // Below the guest's MaxStartups: sshd refuses connections from 50 on.
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

/** Of the open files for connections; the rest is for HTTP ports. Each connection has another to its VM's sshd. */
const SHARE_OF_FILES = 1 / 3;
const FILES_OF_A_CONNECTION = 2;

/** As many connections as the process's limit of open files allows. */
export function sshLimitsWithin(open_files: number): IngressLimits {
  const files = filesForConnections(open_files) * SHARE_OF_FILES;
  const connections = Math.min(LIMITS.connections, Math.floor(files / FILES_OF_A_CONNECTION));
  return { ...LIMITS, connections };
}

/** Beyond the total, for instances that have few. */
const ASSURED_SHARE = 0.1;

/** Totals over all ports. */
export class Totals {
  connections = 0;
  held = 0;
  /** By source, and in all. A connection is idle until its client has sent as much as a login. */
  readonly budget: ConnectionBudget;

  constructor(
    limits: Pick<IngressLimits, 'connections'> = LIMITS,
    by_source: Omit<ConnectionBudgetOptions, 'most'> = { per_source: Number.POSITIVE_INFINITY },
  ) {
    const most = Math.ceil(limits.connections * (1 + ASSURED_SHARE));
    this.budget = new ConnectionBudget({ ...by_source, most });
  }

  /** In order of insertion, so the oldest is first. */
  readonly early = new Set<Socket>();
}
