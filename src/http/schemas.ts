/** Schemas that several resources share. They validate, serialise, and make the API document. */
import { type Static, type TSchema, Type } from 'typebox';
import { ERROR_CODES, type ErrorCode } from '../lib/errors.ts';
import { VM_STATES } from '../vms/model.ts';
import { EMAIL_PATTERN, NAME_PATTERN, PRINTABLE_PATTERN, WHOLE_NUMBER_PATTERN } from './validation-words.ts';

export function closed<P extends Record<string, TSchema>>(properties: P) {
  return Type.Object(properties, { additionalProperties: false });
}
/** A closed object that is a component of the API document, by this name; others are named after their operation. */
export function named<P extends Record<string, TSchema>>(name: string, properties: P) {
  return Type.Object(properties, { additionalProperties: false, title: name });
}
export function nullable<T extends TSchema>(schema: T) {
  return Type.Union([schema, Type.Null()]);
}
export function oneOf<const V extends readonly string[]>(values: V, options: object = {}) {
  return Type.Unsafe<V[number]>({ type: 'string', enum: [...values], ...options });
}

export const Time = Type.String({ format: 'date-time', description: 'RFC 3339, UTC, milliseconds' });
export const EmptyBody = named('EmptyRequest', {});
export const NoContent = Type.Null({ description: 'No content' });

/** 1 to 100 printable characters. */
export const Name = Type.String({ minLength: 1, maxLength: 100, pattern: NAME_PATTERN });
export const Email = Type.String({
  minLength: 3,
  maxLength: 254,
  pattern: EMAIL_PATTERN,
});
export const Scope = Type.String({
  minLength: 1,
  maxLength: 1000,
  description: '`resource:action` separated by spaces, or `*`',
});

export const IdParams = Type.Object({ id: Type.String() });
export const InstanceParams = IdParams;

/** A number in a query, which is text; the API document shows it as the integer that it holds. */
export function wholeNumber(
  limits: { readonly minimum: number; readonly maximum: number; readonly default: number },
  description: string,
) {
  const contentSchema = { type: 'integer', ...limits };
  return Type.String({ pattern: WHOLE_NUMBER_PATTERN, maxLength: 4, description, contentSchema });
}

/** `limit` and `cursor`. */
export function pageQuery<P extends Record<string, TSchema>>(max: number, more: P) {
  return closed({
    limit: Type.Optional(wholeNumber({ minimum: 1, maximum: max, default: 50 }, 'How many at most')),
    cursor: Type.Optional(
      Type.String({ minLength: 1, maxLength: 2048, description: 'next_cursor of the page before' }),
    ),
    ...more,
  });
}
export function pageOf<T extends TSchema>(item: T) {
  return closed({ data: Type.Array(item), next_cursor: nullable(Type.String()) });
}

/** The header with which a stream goes on after a cut. */
export const LastEventId = Type.Object({
  'Last-Event-ID': Type.Optional(
    Type.String({
      maxLength: 64,
      description: 'The id of the last event received: the stream goes on after it. Without: from now on',
    }),
  ),
});
/** A 200 that does not end. */
export function eventStream(): TSchema {
  const schema = Type.String({
    maxLength: Number.MAX_SAFE_INTEGER,
    description: 'Server-sent events; a comment every 15 s keeps it open',
  });
  return { description: 'A stream of events.', content: { 'text/event-stream': { schema } } } as never;
}

const ErrorDetails = Type.Array(
  closed({ field: Type.String({ maxLength: 200 }), issue: Type.String({ maxLength: 500 }) }),
  { maxItems: 10, description: 'Where it helps: what is wrong with which field' },
);

/** The one body of every error; in the API document each response names the codes that it can hold. */
export const ERROR_SCHEMA = closed({
  error: closed({
    code: oneOf(Object.keys(ERROR_CODES)),
    message: Type.String({ maxLength: 1000, description: 'For people; programs read the code' }),
    request_id: Type.String({ maxLength: 28, pattern: '^req_[0-9a-f]{24}$' }),
    details: Type.Optional(ErrorDetails),
  }),
});

/** The responses of these errors, by status, for a route's schema. Errors are sent by `errors.ts`, not by these. */
export function errors(...codes: readonly ErrorCode[]): Record<number, TSchema> {
  const byStatus = new Map<number, ErrorCode[]>();
  for (const code of codes) {
    const { status } = ERROR_CODES[code];
    byStatus.set(status, [...(byStatus.get(status) ?? []), code]);
  }
  const responses: Record<number, TSchema> = {};
  for (const [status, of] of byStatus) {
    responses[status] = Type.Object({ error: Type.Object({ code: oneOf(of) }) });
  }
  return responses;
}

/** What any authenticated route may answer. */
export const COMMON = [
  'INVALID_REQUEST',
  'UNAUTHENTICATED',
  'FORBIDDEN',
  'UNAVAILABLE',
  'INTERNAL',
] as const satisfies readonly ErrorCode[];

export const Disk = named('Disk', {
  size_bytes: Type.Integer(),
  generation: Type.Integer({ description: 'The durable generation; 0 before the first flush' }),
  durable_at: nullable(Time),
  dirty_bytes: Type.Integer({
    description:
      'Written by the guest and not durable yet; at most 5 s old. After the death of a VM, until a flush has looked: the most that it can be',
  }),
  stored_bytes: Type.Integer({
    description:
      'Of the objects that this disk is made of, all its generations together; what a fork shares counts for each',
  }),
});
export const Consistency = oneOf(['filesystem', 'crash', 'offline']);
export const VmReason = named('VmReason', {
  code: Type.String(),
  message: Type.String(),
  actor: Type.String(),
});
export const VmStateSchema = oneOf(VM_STATES, { title: 'VmState' });
export const Vm = named('Vm', {
  id: nullable(Type.String()),
  instance_id: Type.String(),
  state: VmStateSchema,
  boot: Type.Integer({ description: 'Counts starts, not soft reboots' }),
  host_id: nullable(Type.String()),
  started_at: nullable(Time),
  stopped_at: nullable(Time),
  reason: nullable(VmReason),
  disk: Disk,
});
export const Labels = Type.Record(
  Type.String({ pattern: '^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$' }),
  Type.String({ maxLength: 255, pattern: PRINTABLE_PATTERN }),
  { maxProperties: 64, additionalProperties: false },
);
export const GenerationsKeep = named('GenerationsKeep', {
  last: Type.Integer({ minimum: 1, maximum: 1000, description: 'The newest so many' }),
  daily_days: Type.Integer({
    minimum: 0,
    maximum: 365,
    description: 'Of older ones the newest of each day (UTC), for so many days',
  }),
});
export const Instance = named('Instance', {
  id: Type.String(),
  name: Type.String(),
  org_id: Type.String(),
  created_by: Type.String(),
  image: Type.String(),
  cpus: Type.Integer(),
  memory_mib: Type.Integer(),
  disk_gib: Type.Integer(),
  labels: Type.Record(Type.String(), Type.String()),
  idle_timeout_seconds: nullable(Type.Integer()),
  wake_on_connect: Type.Boolean(),
  auto_flush_seconds: nullable(Type.Integer()),
  generations_keep: GenerationsKeep,
  deleting: Type.Boolean(),
  created_at: Time,
  updated_at: Time,
  vm: Vm,
  disk: Disk,
});
export type InstanceBody = Static<typeof Instance>;
