/**
 * Defines the filters that the lists of events and of audit entries share: `since`, `until` and `actor`. `logFilter`
 * checks a query's times, and finds the id of an actor who is given by e-mail address or name.
 */
import { Type } from 'typebox';
import { parseTime } from '../../shared/clock.ts';
import { invalid } from '../../shared/errors.ts';
import type { OrgId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import { PRINTABLE_PATTERN } from '../http/errors.ts';
import { findActor } from '../identity/account-store.ts';

const time = (description: string) =>
  Type.Optional(
    Type.String({ minLength: 1, maxLength: 40, description, examples: ['2026-01-15T09:30:00.000Z'] }),
  );

export const LOG_FILTERS = {
  since: time('Only from this time on: RFC 3339'),
  until: time('Only before this time: RFC 3339'),
  actor: Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: 254,
      pattern: PRINTABLE_PATTERN,
      description:
        'Only of this actor: an id, the e-mail address of a person, the name of a service account, `system` or `operator`',
    }),
  ),
};

export interface LogQuery {
  readonly since?: string;
  readonly until?: string;
  readonly actor?: string;
}

export interface LogFilter {
  readonly since?: Date;
  readonly until?: Date;
  readonly actor?: string;
}

/** Null: no account is the wanted actor, so that nothing fits. @throws AppError INVALID_REQUEST */
export async function logFilter(tx: Tx, org_id: OrgId, query: LogQuery): Promise<LogFilter | null> {
  const { since, until, actor: text } = query;
  const times = {
    ...(since === undefined ? {} : { since: readTime('since', since) }),
    ...(until === undefined ? {} : { until: readTime('until', until) }),
  };
  if (text === undefined) return times;
  const actor = await findActor(tx, org_id, text);
  return actor === null ? null : { ...times, actor };
}

/** @throws AppError INVALID_REQUEST */
export function readTime(field: string, text: string): Date {
  const time = parseTime(text);
  if (time === null) throw invalid(field, 'must be a time such as 2026-01-15T09:30:00Z');
  return time;
}
