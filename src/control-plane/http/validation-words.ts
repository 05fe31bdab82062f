/** Describes validation errors to callers; ajv describes them to the author of the schema. */
import type { FastifyError } from 'fastify';
import type { ErrorDetail } from '../../shared/errors.ts';

export type Finding = NonNullable<FastifyError['validation']>[number];

/** A joiner belongs to the character before it: emoji and several scripts are written with them. Others of \p{C} hide or reorder. */
const JOINER = '[\\u200c\\u200d]?';
const PRINTABLE = `[^\\p{C}]${JOINER}`;

/** The patterns of requests. `OF_PATTERN` describes each in words. */
export const NAME_PATTERN = `^(?:[^\\p{C}\\p{Zl}\\p{Zp}]${JOINER})+$`;
export const EMAIL_PATTERN = '^[^\\s@\\p{C}]+@[^\\s@\\p{C}]+$';
export const WHOLE_NUMBER_PATTERN = '^[0-9]{1,4}$';
export const DNS_LABEL_PATTERN = '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$';
export const NO_NUL_PATTERN = '^[^\\0]*$';
/** PostgreSQL's text cannot hold NUL, and no searchable field holds a control character. */
export const PRINTABLE_PATTERN = `^(?:${PRINTABLE})*$`;
export const TOTP_PATTERN = '^[0-9]{3} ?[0-9]{3}$';
export const SERVICE_ACCOUNT_ID_PATTERN = '^sa_[0-9a-hjkmnp-tv-z]{26}$';
export const RESOURCE_ID_PATTERN = '^[a-z]+_[0-9a-z]+$';
export const IMAGE_PATTERN = '^[a-z0-9][a-z0-9.-]{0,62}$';
export const AUDIT_WORD_PATTERN = '^[A-Za-z0-9_.-]+$';
export const BASE64URL_PATTERN = '^[A-Za-z0-9_-]+$';
export const FILE_MODE_PATTERN = '^[0-7]{3,4}$';
export const LABEL_FILTER_PATTERN = `^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}(=(?:${PRINTABLE}){0,255})?$`;
export const OF_PATTERN: Readonly<Record<string, string>> = {
  [NAME_PATTERN]: 'must be printable characters and not empty',
  [EMAIL_PATTERN]: 'must be an e-mail address',
  [WHOLE_NUMBER_PATTERN]: 'must be a whole number of at most four digits',
  [DNS_LABEL_PATTERN]: 'must be 1 to 63 of a to z, 0 to 9 and -, without - at either end',
  [NO_NUL_PATTERN]: 'must not contain NUL',
  [PRINTABLE_PATTERN]: 'must not contain control characters, or others that are invisible',
  [TOTP_PATTERN]: 'must be six digits',
  [SERVICE_ACCOUNT_ID_PATTERN]: 'must be the id of a service account (sa_…)',
  [RESOURCE_ID_PATTERN]: 'must be the id of a resource, such as inst_…',
  [IMAGE_PATTERN]: 'must be 1 to 63 of a to z, 0 to 9, . and -, and begin with a letter or digit',
  [AUDIT_WORD_PATTERN]: 'must consist of letters, digits, _, . and -',
  [FILE_MODE_PATTERN]: 'must be three or four octal digits, such as 0644',
  [LABEL_FILTER_PATTERN]: 'must be the key of a label, or key=value',
  [BASE64URL_PATTERN]: 'must be base64url without padding',
};
const OF_LABEL_KEY =
  'must be 1 to 63 letters, digits, . _ / and -, and begin with a letter or digit, to be the key of a label';
const MAX_ISSUE_LENGTH = 500;

/**
 * The findings as an error's details, ten at most. If no alternative of a schema fits, the details are those of each
 * alternative, or the schema's description where it has one. `where`: the part of the request.
 */
export function detailsOf(findings: readonly Finding[], where: string): ErrorDetail[] {
  const form = findings.find((each) => each.keyword === 'anyOf' && each.instancePath === '');
  const wanted = descriptionOf(form);
  if (wanted !== undefined) return [{ field: where, issue: `has none of the accepted forms. ${wanted}` }];
  const telling = findings.filter((each) => each.keyword !== 'anyOf' && each.params['type'] !== 'null');
  return (telling.length > 0 ? telling : findings).slice(0, 10).map((each) => detailOf(each, where));
}

function detailOf(finding: Finding, where: string): ErrorDetail {
  const path = finding.instancePath
    .split('/')
    .slice(1)
    .map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~'));
  const { params } = finding;
  const extra = params['additionalProperty'] ?? params['missingProperty'];
  const field = [...path, ...(typeof extra === 'string' ? [extra] : [])].join('.').slice(0, 200) || where;
  const issue = issueOf(finding, path) ?? finding.message ?? 'is invalid';
  return { field, issue: issue.slice(0, MAX_ISSUE_LENGTH) };
}

function issueOf({ keyword, params }: Finding, path: readonly string[]): string | undefined {
  switch (keyword) {
    case 'additionalProperties':
      return path.includes('labels') || path.includes('host_labels') ? OF_LABEL_KEY : 'is not a known field';
    case 'required':
      return 'is required';
    case 'enum':
      return `must be one of ${(params['allowedValues'] as readonly string[]).join(', ')}`;
    case 'const':
      return `must be ${JSON.stringify(params['allowedValue'])}`;
    case 'pattern':
      return OF_PATTERN[params['pattern'] as string];
    case 'minLength':
      return params['limit'] === 1 ? 'must not be empty' : undefined;
    default:
      return undefined;
  }
}

function descriptionOf(finding: Finding | undefined): string | undefined {
  const { parentSchema } = (finding ?? {}) as { readonly parentSchema?: { readonly description?: string } };
  return parentSchema?.description;
}
