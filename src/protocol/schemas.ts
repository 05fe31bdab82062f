/**
 * The building blocks of the internal API's schemas, and the validation of messages. Every text, number and list is
 * bounded, because a host may be hostile.
 */
import { type Static, type TSchema, Type } from 'typebox';
import { Compile } from 'typebox/compile';
import type { Id, IdPrefix } from '../shared/ids.ts';
import { REQUEST_ID, TRACEPARENT } from '../shared/tracing.ts';

type Deep<T> = unknown extends T
  ? T
  : T extends string | number | boolean | null | undefined
    ? T
    : T extends readonly (infer E)[]
      ? readonly Deep<E>[]
      : { readonly [K in keyof T]: Deep<T[K]> };
/** The TypeScript type of a schema. */
export type Of<T extends TSchema> = Deep<Static<T>>;

export function closed<P extends Record<string, TSchema>>(properties: P) {
  return Type.Object(properties, { additionalProperties: false });
}
/** A closed object that becomes a component of the document. */
export function named<P extends Record<string, TSchema>>(title: string, properties: P) {
  return Type.Object(properties, { additionalProperties: false, title });
}
export function nullable<T extends TSchema>(schema: T) {
  return Type.Union([schema, Type.Null()]);
}
export function oneOf<const V extends readonly string[]>(values: V) {
  return Type.Unsafe<V[number]>({ type: 'string', enum: [...values] });
}
export function listOf<T extends TSchema>(item: T, maxItems: number) {
  return Type.Array(item, { maxItems });
}
export function idOf<P extends IdPrefix>(prefix: P) {
  const pattern = `^${prefix}_[0-9a-hjkmnp-tv-z]{26}$`;
  return Type.Unsafe<Id<P>>({ type: 'string', maxLength: prefix.length + 27, pattern });
}
export function whole(minimum: number, maximum: number) {
  return Type.Integer({ minimum, maximum });
}
export function matching(pattern: string, maxLength: number) {
  return Type.String({ maxLength, pattern });
}
/** Any characters, as a guest may print them. */
export function anyText(maxLength: number) {
  return Type.String({ maxLength });
}

const TEXT_MAX = 300;
/** One line for people, as `shared/untrusted-text.ts` makes it. */
export const Text = matching('^[^\\p{Cc}\\p{Cf}\\p{Cs}\\p{Zl}\\p{Zp}]*$', TEXT_MAX);

export const InstanceId = idOf('inst');
export const VmId = idOf('vm');
export const FlushId = idOf('flush');
export const HostId = idOf('host');
export const HttpPortId = idOf('port');
/** Of generations, epochs, boots. */
export const Count = whole(0, Number.MAX_SAFE_INTEGER);
/** 1 PiB at most. */
export const Bytes = whole(0, 2 ** 50);
export const Milliseconds = whole(0, 2 ** 47);
export const Time = matching(
  '^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3])(:[0-5][0-9]){2}\\.[0-9]{3}Z$',
  24,
);
export const Uuid = matching('^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$', 36);
export const Sha256 = matching('^[0-9a-f]{64}$', 64);
export const ImageId = matching('^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$', 63);
export const Etag = matching('^[\\x21-\\x7e]+$', 64);
export const Port = whole(1, 65_535);
export const KeyId = matching('^dk_[0-9a-f]{32}$', 35);
const BYTE = '(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])';
const ENDPOINT_LENGTH_MAX = 21;
/**
 * Where a guest's TCP port is reached on its host: at the guest's own address, or through QEMU's user network at the part of the loopback
 * that is for guests. The ingress of that machine dials it, so a host that could name any other would have it connect there.
 */
export const GuestPortAddress = matching(
  `^(198\\.18|127\\.(6[4-9]|[7-9][0-9]|1[01][0-9]|12[0-7]))(\\.${BYTE}){2}:[1-9][0-9]{0,4}$`,
  ENDPOINT_LENGTH_MAX,
);
/** Where a guest's sshd is reached on its host; QEMU's user network forwards a port of the usual loopback. */
export const GuestSshAddress = matching(
  `^(127\\.0\\.0\\.1|198\\.18(\\.${BYTE}){2}):[1-9][0-9]{0,4}$`,
  ENDPOINT_LENGTH_MAX,
);
/** Of an SSH key, as `ssh-keygen -l` prints it. */
export const Fingerprint = matching('^SHA256:[A-Za-z0-9+/]{43}$', 50);
/** The most SSH keys that an instance can allow. */
export const KEYS_MAX = 20_000;

const strict = new WeakMap<TSchema, ReturnType<typeof Compile>>();
const reading = new WeakMap<TSchema, ReturnType<typeof Compile>>();

function compiled(schema: TSchema, open: boolean): ReturnType<typeof Compile> {
  const known = open ? reading : strict;
  const found = known.get(schema) ?? Compile(open ? opened(schema) : schema);
  known.set(schema, found);
  return found;
}

export function conforms(schema: TSchema, value: unknown): boolean {
  return compiled(schema, false).Check(value);
}

/** Where `value` violates the schema, without any content of it; null when it does not. */
export function violationOf(schema: TSchema, value: unknown): string | null {
  return problem(compiled(schema, false), value);
}

/** As {@link violationOf}, but unknown fields are allowed: an answer may come from a newer version. */
export function answerViolationOf(schema: TSchema, value: unknown): string | null {
  return problem(compiled(schema, true), value);
}

function problem(check: ReturnType<typeof Compile>, value: unknown): string | null {
  if (check.Check(value)) return null;
  const [first] = check.Errors(value);
  const where = first?.instancePath.slice(1).replaceAll('/', '.') || 'body';
  return `${where} ${first?.message ?? 'is invalid'}`.slice(0, 300);
}

/** The schema with unknown fields allowed. */
function opened(schema: TSchema): TSchema {
  const text = JSON.stringify(schema, (key, value) => (key === 'additionalProperties' ? undefined : value));
  return JSON.parse(text) as TSchema;
}

/** The request that work is done for, and the span that asked for it. */
export const TraceContext = named('TraceContext', {
  request_id: Type.Optional(matching(REQUEST_ID, 28)),
  traceparent: Type.Optional(matching(TRACEPARENT, 55)),
});
