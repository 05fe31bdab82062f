/**
 * Defines the limits of the ingress: for SSH connections in total, by source address and by instance, and for the
 * connections and requests of HTTP ports. Reduces them to what the process's limit of open files allows.
 */
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

/** Of the open files for connections; the rest is for HTTP ports. */
const SSH_SHARE_OF_FILES = 1 / 3;
/** Each connection has another to a guest. */
const FILES_OF_A_CONNECTION = 2;

/** As many connections as the process's limit of open files allows. */
export function sshLimitsWithin(open_files: number): IngressLimits {
  const files = filesForConnections(open_files) * SSH_SHARE_OF_FILES;
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

/** Limits of the HTTP listener: per instance, so that one cannot exhaust it, and in total. */
export interface HttpLimits {
  /** Open connections of clients; see ConnectionBudget. */
  readonly connections: number;
  /** Requests and upgraded connections of one instance; further ones get 503. */
  readonly exchanges_per_instance: number;
  /** Requests that wait for their VM. */
  readonly waiting_per_instance: number;
  readonly waiting: number;
  /** Of one port, so many may wait even if many instances of one owner have reached the total. */
  readonly assured_waiting: number;
  /** Connections to one port of a guest, without upgraded ones; further requests wait for one. */
  readonly guest_connections: number;
  /** An unused connection to a guest is kept for less than any server waits for the next request. */
  readonly guest_idle_ms: number;
  /** Of a request, and of a response. */
  readonly header_bytes: number;
  /** How long a client may take for the headers of a request. */
  readonly headers_ms: number;
  /** How long a client's connection may stay without a request. */
  readonly keep_alive_ms: number;
  /** How long neither side of a request may send a byte. */
  readonly idle_ms: number;
  readonly dial_ms: number;
  /** How long a request waits for its VM. */
  readonly wake_ms: number;
  /** How long a program may take after its VM's start until it listens. */
  readonly settling_ms: number;
  /** How long an answer about a credential is kept. */
  readonly permission_ms: number;
  /** How often open connections are checked, and how long they outlive the last answer if there is none. */
  readonly recheck_ms: number;
  readonly unconfirmed_ms: number;
  readonly report_ms: number;
}

export const HTTP_LIMITS: HttpLimits = {
  connections: 20_000,
  exchanges_per_instance: 4_000,
  waiting_per_instance: 200,
  waiting: 2_000,
  assured_waiting: 16,
  guest_connections: 1_024,
  guest_idle_ms: 1_000,
  header_bytes: 32 * 1024,
  headers_ms: 20_000,
  keep_alive_ms: 75_000,
  idle_ms: 600_000,
  dial_ms: 5_000,
  wake_ms: 120_000,
  settling_ms: 30_000,
  permission_ms: 2_000,
  recheck_ms: 1_500,
  unconfirmed_ms: 5_000,
  report_ms: 5_000,
};

const SHARE_OF_AN_INSTANCE = HTTP_LIMITS.exchanges_per_instance / HTTP_LIMITS.connections;

/** As many connections as the process's limit of open files allows. */
export function httpLimitsWithin(open_files: number): HttpLimits {
  const files = filesForConnections(open_files) * (1 - SSH_SHARE_OF_FILES);
  const connections = Math.min(HTTP_LIMITS.connections, Math.floor(files / FILES_OF_A_CONNECTION));
  return {
    ...HTTP_LIMITS,
    connections,
    exchanges_per_instance: Math.floor(connections * SHARE_OF_AN_INSTANCE),
  };
}
