/** Limits of connections and requests of HTTP ports. */
import { filesForConnections } from '../../shared/connection-budget.ts';

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

/** Of the open files for connections; the rest is for SSH. Each connection has another to a guest. */
const SHARE_OF_FILES = 2 / 3;
const FILES_OF_A_CONNECTION = 2;
const SHARE_OF_AN_INSTANCE = HTTP_LIMITS.exchanges_per_instance / HTTP_LIMITS.connections;

/** As many connections as the process's limit of open files allows. */
export function limitsWithin(open_files: number): HttpLimits {
  const files = filesForConnections(open_files) * SHARE_OF_FILES;
  const connections = Math.min(HTTP_LIMITS.connections, Math.floor(files / FILES_OF_A_CONNECTION));
  return {
    ...HTTP_LIMITS,
    connections,
    exchanges_per_instance: Math.floor(connections * SHARE_OF_AN_INSTANCE),
  };
}
