/** A VM's egress policy, and what it was denied. */
import { EGRESS_ENTRIES_MAX, EGRESS_ENTRY_LENGTH_MAX, EGRESS_MODES } from '../shared/egress-policy.ts';
import {
  InstanceId,
  listOf,
  matching,
  named,
  nullable,
  type Of,
  oneOf,
  Port,
  Time,
  whole,
} from './schemas.ts';

export const Egress = named('Egress', {
  mode: oneOf(EGRESS_MODES),
  /** In their stored form; they apply in mode `allow`. */
  allow: listOf(matching('^[\\x21-\\x7e]+$', EGRESS_ENTRY_LENGTH_MAX), EGRESS_ENTRIES_MAX),
});

/** The most destinations in one report. */
const DENIALS_MAX = 1_000;

const DeniedDestination = named('DeniedDestination', {
  instance_id: InstanceId,
  /** Of the last attempt. */
  at: Time,
  /** As the guest asked for it, in lower case; null: unknown. */
  name: nullable(matching('^[a-z0-9._-]+$', 253)),
  address: nullable(matching('^[0-9a-f.:]+$', 45)),
  /** Null: a look-up, or a protocol without ports. */
  port: nullable(Port),
  count: whole(1, 2 ** 31 - 1),
});
export type DeniedDestination = Of<typeof DeniedDestination>;

export const DeniedReport = named('DeniedReport', { denials: listOf(DeniedDestination, DENIALS_MAX) });
export type DeniedReport = Of<typeof DeniedReport>;
