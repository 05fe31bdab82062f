/** Errors as problem details (RFC 9457), for callers whose `Accept` prefers them to JSON. */
import { STATUS_CODES } from 'node:http';
import { ERROR_CODES } from '../../shared/errors.ts';
import type { ErrorBody } from './errors.ts';

export const PROBLEM_TYPE = 'application/problem+json';

export interface ProblemDetails extends Omit<ErrorBody['error'], 'message'> {
  /** `about:blank`: the kind of problem is that of the HTTP status; `code` tells it exactly. */
  readonly type: 'about:blank';
  /** The phrase of the HTTP status, as RFC 9457 asks for with `about:blank`. */
  readonly title: string;
  readonly status: number;
  /** The error's message. */
  readonly detail: string;
}

export function problemOf({ error: { message, ...members } }: ErrorBody): ProblemDetails {
  const { status } = ERROR_CODES[members.code];
  return { type: 'about:blank', title: STATUS_CODES[status] ?? '', status, detail: message, ...members };
}

/**
 * Whether the header Accept (RFC 9110, section 12.5.1) names problem details, with a higher weight than JSON. With the same
 * weight the first of the two counts. A wildcard means JSON.
 */
export function prefersProblem(accept: string | undefined): boolean {
  if (!accept?.toLowerCase().includes(PROBLEM_TYPE)) return false;
  const ranges = accept.toLowerCase().split(',').map(rangeOf);
  const weightOf = (type: string) => ranges.find((range) => range.type === type)?.weight ?? 0;
  const [problem, json] = [weightOf(PROBLEM_TYPE), weightOf('application/json')];
  const first = ranges.find(({ type }) => type === PROBLEM_TYPE || type === 'application/json');
  return problem > json || (problem > 0 && problem === json && first?.type === PROBLEM_TYPE);
}

function rangeOf(text: string): { readonly type: string; readonly weight: number } {
  const [type = '', ...parameters] = text.split(';').map((part) => part.trim());
  const weight = parameters.find((parameter) => parameter.startsWith('q='))?.slice(2);
  return { type, weight: weight === undefined ? 1 : Number(weight) || 0 };
}
