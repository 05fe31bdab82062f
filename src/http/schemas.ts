/** Schemas that several resources share. They validate, serialise, and make the API document. */
import { type Static, type TSchema, Type } from 'typebox';
import { ERROR_CODES, type ErrorCode } from '../lib/errors.ts';
import { VM_STATES } from '../vms/model.ts';

export function closed<P extends Record<string, TSchema>>(properties: P) {
  return Type.Object(properties, { additionalProperties: false });
}
export function nullable<T extends TSchema>(schema: T) {
  return Type.Union([schema, Type.Null()]);
}
function oneOf<const V extends readonly string[]>(values: V, options: object = {}) {
  return Type.Unsafe<V[number]>({ type: 'string', enum: [...values], ...options });
}

export const Time = Type.String({ format: 'date-time', description: 'RFC 3339, UTC, milliseconds' });
export const EmptyBody = closed({});
export const NoContent = Type.Null({ description: 'No content' });

/** 1 to 100 printable characters. */
export const Name = Type.String({ minLength: 1, maxLength: 100, pattern: '^[^\\p{C}\\p{Zl}\\p{Zp}]+$' });
export const Email = Type.String({
  minLength: 3,
  maxLength: 254,
  pattern: '^[^\\s@\\p{C}]+@[^\\s@\\p{C}]+$',
});
export const Scope = Type.String({
  minLength: 1,
  maxLength: 1000,
  description: '`resource:action` separated by spaces, or `*`',
});

export const IdParams = Type.Object({ id: Type.String() });
export const InstanceParams = IdParams;

/** `limit` and `cursor`; query strings are text, so the number is checked as one. */
export function pageQuery<P extends Record<string, TSchema>>(max: number, more: P) {
  return closed({
    limit: Type.Optional(
      Type.String({
        pattern: '^[0-9]{1,4}$',
        description: `1 to ${max}, default 50`,
      }),
    ),
    cursor: Type.Optional(
      Type.String({ minLength: 1, maxLength: 2048, description: 'next_cursor of the page before' }),
    ),
    ...more,
  });
}
export function pageOf<T extends TSchema>(item: T) {
  return closed({ data: Type.Array(item), next_cursor: nullable(Type.String()) });
}

const ErrorDetails = Type.Array(closed({ field: Type.String(), issue: Type.String() }));

/** The responses of these errors, by status, for a route's schema. */
export function errors(...codes: readonly ErrorCode[]): Record<number, TSchema> {
  const byStatus = new Map<number, ErrorCode[]>();
  for (const code of codes) {
    const { status } = ERROR_CODES[code];
    byStatus.set(status, [...(byStatus.get(status) ?? []), code]);
  }
  const responses: Record<number, TSchema> = {};
  for (const [status, of] of byStatus) {
    responses[status] = Type.Object(
      {
        error: Type.Object({
          code: oneOf(of),
          message: Type.String(),
          request_id: Type.String(),
          details: Type.Optional(ErrorDetails),
        }),
      },
      { description: of.map((code) => `${code}: ${ERROR_CODES[code].message}`).join(' ') },
    );
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

export const Disk = closed({
  size_bytes: Type.Integer(),
  generation: Type.Integer({ description: 'The durable generation; 0 before the first flush' }),
  durable_at: nullable(Time),
  dirty_bytes: Type.Integer({ description: 'Written by the guest and not durable yet; at most 5 s old' }),
  stored_bytes: Type.Integer({ description: 'In the object store' }),
});
export const VmReason = closed({ code: Type.String(), message: Type.String(), actor: Type.String() });
export const VmStateSchema = oneOf(VM_STATES);
export const Vm = closed({
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
  Type.String({ maxLength: 255, pattern: '^[^\\p{C}]*$' }),
  { maxProperties: 64, additionalProperties: false },
);
export const Instance = closed({
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
  deleting: Type.Boolean(),
  created_at: Time,
  updated_at: Time,
  vm: Vm,
  disk: Disk,
});
export type InstanceBody = Static<typeof Instance>;
