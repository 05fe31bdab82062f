/**
 * Types of columns that SQL does not describe: the shapes of JSON columns, and the values of text columns that the API
 * shows, too. The generated tables.ts uses the shapes.
 */
import type { InstanceId } from '../../shared/ids.ts';

/** What makes a generation. `request`: a caller; `auto`: an automatic flush; `stop`, `suspend`: the VM's last flush. */
export const GENERATION_TRIGGERS = [
  'request',
  'auto',
  'stop',
  'suspend',
  'import',
  'fork',
  'restore',
] as const;
export type GenerationTrigger = (typeof GENERATION_TRIGGERS)[number];

/** What a disk's content was taken from. */
export interface GenerationOrigin {
  readonly instance_id: InstanceId;
  readonly generation: number;
}

export interface ForkedFrom extends GenerationOrigin {
  /** What the parent had written and not flushed by then. */
  readonly dirty_bytes: number;
}

/** The data of a WebAuthn credential that verifies its assertions. */
export interface StoredCredential {
  /** base64url, as the browser names it. */
  readonly id: string;
  /** COSE key, base64url. */
  readonly public_key: string;
  readonly counter: number;
  readonly transports: readonly string[];
}

/** An answer of Berth instead of the guest. */
export interface HttpError {
  readonly at: string;
  readonly code: string;
  readonly message: string;
}

/** The states that users see; `starting` comes before them. */
export const EXEC_STATES = ['running', 'exited', 'lost'] as const;
export type ExecState = (typeof EXEC_STATES)[number];

/** Who may use an HTTP port. */
export const ACCESSES = ['private', 'public'] as const;
export type PortAccess = (typeof ACCESSES)[number];
