/** Components of the API document that operations refer to: headers, parameters, error responses. */
import { ERROR_CODES, type ErrorCode } from '../../../shared/errors.ts';
import { PROBLEM_TYPE } from '../errors.ts';
import {
  type HeaderObject,
  JSON_TYPE,
  type ParameterObject,
  type Reference,
  type ResponseObject,
} from './types.ts';

export const HEADERS: Record<string, HeaderObject> = {
  'X-Request-Id': {
    description: 'The id of this request in the logs and the audit log.',
    required: true,
    schema: { type: 'string', maxLength: 28, pattern: '^req_[0-9a-f]{24}$' },
  },
  'RateLimit-Policy': {
    description: 'The limit that applies: its name, its quota `q`, its window `w` in seconds.',
    schema: { type: 'string', maxLength: 100 },
  },
  RateLimit: {
    description: 'The rest of the limit: `r` requests, until it resets in `t` seconds.',
    schema: { type: 'string', maxLength: 100 },
  },
  'Retry-After': {
    description: 'The seconds to wait before a retry.',
    schema: { type: 'integer', format: 'int64', minimum: 1, maximum: 86_400 },
  },
  'WWW-Authenticate': { description: 'How to authenticate.', schema: { type: 'string', const: 'Bearer' } },
  ETag: {
    description: 'The state of the resource, for `If-Match`.',
    schema: { type: 'string', maxLength: 24, pattern: '^"[A-Za-z0-9_-]{22}"$' },
  },
  'Idempotency-Replayed': {
    description: 'The answer is that of an earlier request with the same key.',
    schema: { type: 'string', const: 'true' },
  },
  'Set-Cookie': {
    description:
      'A cookie that is HttpOnly, Secure, SameSite=Strict; that of a login at the OpenID provider is Lax.',
    schema: { type: 'string', maxLength: 4096 },
  },
};

export const PARAMETERS: Record<string, ParameterObject> = {
  IdempotencyKey: {
    name: 'Idempotency-Key',
    in: 'header',
    required: false,
    description:
      '1 to 255 printable characters, bare or quoted; absent, empty and null mean none. For 24 hours a repeated request with the same key gets the same answer and changes nothing.',
    schema: { type: ['string', 'null'], maxLength: 257, pattern: '^[\\x20-\\x7e]*$' },
  },
  IfMatch: {
    name: 'If-Match',
    in: 'header',
    required: false,
    description: 'One or several ETags, or `*`: 412 if the resource is in another state.',
    schema: { type: 'string', maxLength: 2048 },
  },
  BerthOrg: {
    name: 'Berth-Org',
    in: 'header',
    required: false,
    description:
      'The organisation that a session acts in. An API key acts in its own; if the header names another, it gets 403.',
    schema: { type: 'string', maxLength: 30, pattern: '^org_[0-9a-hjkmnp-tv-z]{26}$' },
  },
};

export function headerRefs(names: readonly string[]): Record<string, Reference> {
  return Object.fromEntries(names.map((name) => [name, { $ref: `#/components/headers/${name}` }]));
}

/** On every response that came from a route. */
export const COMMON_HEADERS = ['X-Request-Id', 'RateLimit-Policy', 'RateLimit'];
const RETRY_LATER: ReadonlySet<ErrorCode> = new Set([
  'IDEMPOTENCY_IN_PROGRESS',
  'ACCOUNT_LOCKED',
  'RATE_LIMITED',
  'UNAVAILABLE',
]);

/** One component for each set of codes that some operation answers with one status. */
export class ErrorResponses {
  readonly #made = new Map<string, ResponseObject>();

  /** `codes` have one status. */
  refer(codes: readonly ErrorCode[]): Reference {
    const known = Object.keys(ERROR_CODES) as ErrorCode[];
    const sorted = known.filter((code) => codes.includes(code));
    const name = sorted.map(pascal).join('Or');
    if (!this.#made.has(name)) this.#made.set(name, errorResponse(sorted));
    return { $ref: `#/components/responses/${name}` };
  }

  all(): Record<string, ResponseObject> {
    return Object.fromEntries([...this.#made].sort(([a], [b]) => (a < b ? -1 : 1)));
  }
}

function errorResponse(codes: readonly ErrorCode[]): ResponseObject {
  const is_401 = codes.some((code) => ERROR_CODES[code].status === 401);
  const names = [
    ...COMMON_HEADERS,
    ...(is_401 ? ['WWW-Authenticate'] : []),
    ...(codes.some((code) => RETRY_LATER.has(code)) ? ['Retry-After'] : []),
  ];
  const example = (code: ErrorCode) => ({
    error: { code, message: ERROR_CODES[code].message, request_id: 'req_5f2b8c1e9d3a4b7c6e0f1a2d' },
  });
  return {
    description: codes.map((code) => `\`${code}\`: ${ERROR_CODES[code].message}`).join('\n\n'),
    headers: headerRefs(names),
    content: {
      [JSON_TYPE]: {
        schema: { $ref: '#/components/schemas/Error' },
        examples: Object.fromEntries(codes.map((code) => [code, { value: example(code) }])),
      },
      // To callers whose Accept prefers it.
      [PROBLEM_TYPE]: { schema: { $ref: '#/components/schemas/ProblemDetails' } },
    },
  };
}

function pascal(code: string): string {
  // The two spellings of one code need two names.
  if (code === 'Unauthenticated') return 'UnauthenticatedWebhooks';
  return code
    .toLowerCase()
    .split('_')
    .map((word) => word.charAt(0).toUpperCase() + word.slice(1))
    .join('');
}
