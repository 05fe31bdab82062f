/**
 * Defines the API's schemas of an instance with its VM, disk, SSH address, egress policy and placement. Several
 * features use them in their routes.
 */
import { type Static, Type } from 'typebox';
import { EGRESS_ENTRIES_MAX, EGRESS_ENTRY_LENGTH_MAX, EGRESS_MODES } from '../../shared/egress-policy.ts';
import { RESTART_POLICIES } from '../../shared/restart-policy.ts';
import { LABEL_FILTER_PATTERN, PRINTABLE_PATTERN } from '../http/errors.ts';
import {
  closed,
  EXAMPLE_ULID,
  Fingerprint,
  idOf,
  KeyType,
  named,
  nullable,
  oneOf,
  PublicKey,
  Time,
} from '../http/schemas.ts';
import { VM_STATES } from '../vms/model.ts';

export const Disk = named('Disk', {
  size_bytes: Type.Integer({ examples: [8_589_934_592] }),
  generation: Type.Integer({
    description: 'The newest durable generation; 0 before the first flush',
    examples: [42],
  }),
  durable_at: nullable(Time),
  dirty_bytes: Type.Integer({
    description:
      'Bytes that the guest has written to its disk and that are not durable yet; at most 5 s old. What the guest still holds in memory is not counted, and a flush saves it too. After a VM has died, an upper bound until the next flush',
    examples: [0],
  }),
  stored_bytes: Type.Integer({
    description:
      'The size of the stored objects of this disk, of all its generations; objects that a fork shares count for both',
    examples: [734_003_200],
  }),
  growth: Type.Optional(
    oneOf(['done', 'next_boot'], {
      description:
        "What became of the last increase of `disk_gib`. `done`: the guest's root file system has grown. `next_boot`: it grows when the guest boots, or earlier if the VM runs and its host could not do it at once. Absent: there was none",
      examples: ['done'],
    }),
  ),
});
export const Consistency = oneOf(['filesystem', 'crash', 'offline']);
export const VmReason = named('VmReason', {
  code: Type.String({ examples: ['requested'] }),
  message: Type.String({ examples: ['A caller has asked for it.'] }),
  actor: Type.String({ examples: [`usr_${EXAMPLE_ULID}`] }),
});
export const VmStateSchema = oneOf(VM_STATES, { title: 'VmState', examples: ['running'] });
export const Vm = named('Vm', {
  id: nullable(idOf('vm')),
  instance_id: idOf('inst'),
  state: VmStateSchema,
  boot: Type.Integer({ description: 'Counts starts; a soft reboot is not one', examples: [3] }),
  host_id: nullable(idOf('host')),
  started_at: nullable(Time),
  stopped_at: nullable(Time, { examples: [null] }),
  reason: nullable(VmReason, { examples: [null] }),
  disk: Disk,
});
const EXAMPLE_LABELS = { env: 'production' };
const labelsWith = (more: { readonly description?: string; readonly examples: Record<string, string>[] }) =>
  Type.Record(
    Type.String({ pattern: '^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$' }),
    Type.String({ maxLength: 255, pattern: PRINTABLE_PATTERN }),
    { maxProperties: 64, additionalProperties: false, ...more },
  );
export const Labels = labelsWith({ examples: [EXAMPLE_LABELS] });
export const GenerationsKeep = named('GenerationsKeep', {
  last: Type.Integer({
    minimum: 1,
    maximum: 1000,
    description: 'How many of the newest generations are kept',
    examples: [24],
  }),
  daily_days: Type.Integer({
    minimum: 0,
    maximum: 365,
    description: 'Of older generations, the newest of a day (UTC) is kept, for this many days that have one',
    examples: [14],
  }),
});
export const EgressModeSchema = oneOf(EGRESS_MODES, {
  title: 'EgressMode',
  description:
    '`open`: the public internet; `deny`: nothing; `allow`: the entries of `allow`. Private addresses are closed in every mode',
  examples: ['allow'],
});
export const EgressAllow = Type.Array(Type.String({ minLength: 1, maxLength: EGRESS_ENTRY_LENGTH_MAX }), {
  maxItems: EGRESS_ENTRIES_MAX,
  description:
    'Names (`example.com`, `*.example.com`), addresses and networks, each with an optional `:port`. A name without a port means ports 80 and 443. Kept in every mode; applies in mode `allow`',
  examples: [['example.com', '*.example.org:8443', '203.0.113.0/24']],
});
const HOST_LABELS = {
  description: 'A host must have all of these labels. What it has says its operator',
  examples: [{ zone: 'b' }],
};
const TOLERATIONS = {
  description: 'Taints of hosts that the instance tolerates. A host with any other taint does not get it',
  examples: [['gpu']],
};
export const PlacementRequest = closed({
  host_labels: Type.Optional(labelsWith(HOST_LABELS)),
  tolerations: Type.Optional(
    Type.Array(Type.String({ maxLength: 318, pattern: LABEL_FILTER_PATTERN }), {
      maxItems: 64,
      ...TOLERATIONS,
    }),
  ),
});
export const Placement = named('Placement', {
  host_labels: Type.Record(Type.String(), Type.String(), HOST_LABELS),
  tolerations: Type.Array(Type.String(), TOLERATIONS),
});
export const Egress = named('Egress', { mode: EgressModeSchema, allow: EgressAllow });
export const HostKeySchema = named('HostKey', {
  type: KeyType,
  fingerprint: Fingerprint,
  public_key: PublicKey,
});
export const SshAddress = named('SshAddress', {
  host: Type.String({ examples: ['berth.example.org'] }),
  port: Type.Integer({ examples: [22_001] }),
});
export const GenerationNumber = Type.Integer({ minimum: 1, maximum: 2 ** 53 - 1, examples: [42] });
const ForkedFrom = named('ForkedFrom', {
  instance_id: idOf('inst'),
  generation: GenerationNumber,
  dirty_bytes: Type.Integer({
    description:
      "What the parent had written and not flushed, by its host's last report, at most 5 s before: the fork lacks at least this. It lacks nothing after a flush",
    examples: [0],
  }),
});

export const RestartPolicySchema = oneOf(RESTART_POLICIES, {
  description:
    '`on_failure`: a VM that fails is started again, after 1 s, then 2, 4, 8 and 16 s; after five such starts within 10 minutes it stays `failed`. Its next `running` has the reason `recovered`, which says what was lost',
  examples: ['never'],
});

export const Instance = named('Instance', {
  id: idOf('inst'),
  name: Type.String({ examples: ['web-1'] }),
  org_id: idOf('org'),
  created_by: idOf('usr'),
  image: Type.String({ examples: ['debian-12'] }),
  cpus: Type.Integer({ examples: [2] }),
  memory_mib: Type.Integer({ examples: [1024] }),
  disk_gib: Type.Integer({ examples: [8] }),
  labels: Type.Record(Type.String(), Type.String(), { examples: [EXAMPLE_LABELS] }),
  idle_timeout_seconds: nullable(Type.Integer(), { examples: [null] }),
  wake_on_connect: Type.Boolean({ examples: [false] }),
  restart: RestartPolicySchema,
  auto_flush_seconds: nullable(
    Type.Integer({
      description:
        'How often a running VM is flushed, if it wrote something. A single changed block of 64 KiB waits up to ten intervals, because each flush changes one',
      examples: [60],
    }),
  ),
  generations_keep: GenerationsKeep,
  egress: Egress,
  placement: Placement,
  ssh: SshAddress,
  host_keys: Type.Array(HostKeySchema, {
    description: "The guest's SSH host keys as of its last boot; empty before the first",
  }),
  forked_from: nullable(ForkedFrom, {
    description: 'The instance whose disk it began with; it may be deleted. Null: none',
    examples: [null],
  }),
  deleting: Type.Boolean({ examples: [false] }),
  created_at: Time,
  updated_at: Time,
  vm: Vm,
  disk: Disk,
});
export type InstanceBody = Static<typeof Instance>;
