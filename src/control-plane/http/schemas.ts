/**
 * Defines schemas that several resources share. They validate requests, serialise answers, and make the API document. A
 * string in that document declares an example (`examples`).
 */
import { type TSchema, type TSchemaOptions, type TStringOptions, Type } from 'typebox';
import { ERROR_CODES } from '../../shared/errors.ts';
import type { IdPrefix } from '../../shared/ids.ts';
import { EMAIL_PATTERN, NAME_PATTERN, WHOLE_NUMBER_PATTERN } from './errors.ts';

export function closed<P extends Record<string, TSchema>>(properties: P) {
  return Type.Object(properties, { additionalProperties: false });
}
/** A closed object that the API document lists as a component of this name; others are named after their operation. */
export function named<P extends Record<string, TSchema>>(name: string, properties: P) {
  return Type.Object(properties, { additionalProperties: false, title: name });
}
export function nullable<T extends TSchema>(schema: T, options: TSchemaOptions = {}) {
  return Type.Union([schema, Type.Null()], options);
}
export function oneOf<const V extends readonly string[]>(values: V, options: object = {}) {
  return Type.Unsafe<V[number]>({ type: 'string', enum: [...values], ...options });
}

export const Time = Type.String({ format: 'date-time', description: 'RFC 3339, UTC, milliseconds' });
export const EmptyBody = named('EmptyRequest', {});
export const NoContent = Type.Null({ description: 'No content' });
/** Sent as the body of a 202 without one: Fastify would send `null` as JSON. */
export const NO_BODY = undefined as unknown as null;

export const EXAMPLE_ULID = '01k5x8m2vq7r4t9wz3b6c8d0ef';
/** An id in an answer. */
export function idOf(prefix: IdPrefix, options: TStringOptions = {}) {
  return Type.String({ maxLength: 64, examples: [`${prefix}_${EXAMPLE_ULID}`], ...options });
}
/** The ids in a path, by parameter: `{ id: 'the instance' }`. */
export function pathIds<const P extends Record<string, string>>(names: P) {
  const fields = Object.entries(names).map(([name, of]) => [name, pathParameter(`The id of ${of}`)]);
  return Type.Object(Object.fromEntries(fields) as { [K in keyof P]: ReturnType<typeof pathParameter> });
}
export function pathParameter(description: string) {
  return Type.String({ description: `${description}; 404 if it is malformed` });
}
export const InstanceParams = pathIds({ id: 'the instance' });

/** 1 to 100 printable characters. */
export function nameText(example: string) {
  return Type.String({ minLength: 1, maxLength: 100, pattern: NAME_PATTERN, examples: [example] });
}
export const Email = Type.String({
  minLength: 3,
  maxLength: 254,
  pattern: EMAIL_PATTERN,
  examples: ['ada@example.org'],
});
export const MailToken = Type.String({
  minLength: 1,
  maxLength: 200,
  examples: ['berth_mail_4kV0tq8WbYh2RmXz5nJc7LsPd1Fg3Ua9Eo6Ti'],
});
export const SessionToken = Type.String({ examples: ['berth_sess_…'] });
export const EXAMPLE_SCOPE = 'instances:read vm:write';
export const Scope = Type.String({
  minLength: 1,
  maxLength: 1000,
  description: '`resource:action` separated by spaces, or `*`',
  examples: [EXAMPLE_SCOPE],
});

const EXAMPLE_BLOB = 'AAAAC3NzaC1lZDI1NTE5AAAAIJqQm5Z1kT0fN2tq0Q7m8bq3yqkqk4dJX9mC2l7hY1aB';
export const KeyType = Type.String({ examples: ['ssh-ed25519'] });
export const Fingerprint = Type.String({
  examples: ['SHA256:Yk9mQ2x0b1B6c0h3d0RqR1ZtN2pXcTVlTjRyVDhhSzE'],
});
export const EXAMPLE_PUBLIC_KEY = `ssh-ed25519 ${EXAMPLE_BLOB}`;
export const PublicKey = Type.String({ examples: [EXAMPLE_PUBLIC_KEY] });

/** A number in a query, which arrives as text; the API document shows the integer. */
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
    limit: Type.Optional(
      wholeNumber({ minimum: 1, maximum: max, default: 50 }, 'The most entries that a page holds'),
    ),
    cursor: Type.Optional(
      Type.String({ minLength: 1, maxLength: 2048, description: 'The `next_cursor` of the page before' }),
    ),
    ...more,
  });
}
export function pageOf<T extends TSchema>(item: T) {
  return closed({ data: Type.Array(item), next_cursor: nullable(Type.String(), { examples: [null] }) });
}

/** The header that resumes a stream. */
export const LastEventId = Type.Object({
  'Last-Event-ID': Type.Optional(
    Type.String({
      maxLength: 64,
      description:
        'The id of the last event received; the stream resumes after it. Without it, the stream begins now',
    }),
  ),
});
/** A 200 whose body does not end. */
export function eventStream(): TSchema {
  const schema = Type.String({
    maxLength: Number.MAX_SAFE_INTEGER,
    description: 'Server-sent events; a comment every 15 s keeps the connection open',
  });
  return { description: 'A stream of events.', content: { 'text/event-stream': { schema } } } as never;
}

const ErrorDetails = Type.Array(
  closed({ field: Type.String({ maxLength: 200 }), issue: Type.String({ maxLength: 500 }) }),
  { maxItems: 10, description: 'The fields that are wrong, if the error is about fields' },
);

/** The body of every error. In the API document each response lists its codes. */
export const ERROR_SCHEMA = closed({
  error: closed({
    code: oneOf(Object.keys(ERROR_CODES)),
    message: Type.String({ maxLength: 1000, description: 'For people; programs read the code' }),
    request_id: Type.String({ maxLength: 28, pattern: '^req_[0-9a-f]{24}$' }),
    details: Type.Optional(ErrorDetails),
  }),
});

/** The same as problem details (RFC 9457). */
export const PROBLEM_SCHEMA = closed({
  type: Type.Literal('about:blank'),
  title: Type.String({ maxLength: 100, description: 'The phrase of the HTTP status' }),
  status: Type.Integer({ minimum: 400, maximum: 599, format: 'int32' }),
  detail: Type.String({ maxLength: 1000, description: 'For people; programs read the code' }),
  code: oneOf(Object.keys(ERROR_CODES)),
  request_id: Type.String({ maxLength: 28, pattern: '^req_[0-9a-f]{24}$' }),
  details: Type.Optional(ErrorDetails),
});
