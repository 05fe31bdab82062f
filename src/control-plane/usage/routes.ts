/** The route that lists what an organisation's instances used, by the hour or by the day, as JSON or CSV. */
import { Type } from 'typebox';
import { rfc3339 } from '../../shared/clock.ts';
import { invalid } from '../../shared/errors.ts';
import { type InstanceId, isId } from '../../shared/ids.ts';
import type { AppContext } from '../context.ts';
import { readTime } from '../events/log-filters.ts';
import { principalOf } from '../http/access.ts';
import { PRINTABLE_PATTERN } from '../http/errors.ts';
import type { App } from '../http/mutate.ts';
import { type CursorSealer, pageOfList } from '../http/pagination.ts';
import { idOf, named, oneOf, pageOf, pageQuery } from '../http/schemas.ts';
import { INTERVALS, listUsage, type UsageRow } from './store.ts';

const DEFAULT_DAYS = 30;
const DAY_MS = 86_400_000;

const time = (description: string) =>
  Type.Optional(
    Type.String({ minLength: 1, maxLength: 40, description, examples: ['2026-01-15T09:00:00.000Z'] }),
  );
const amount = (description: string, example: number) =>
  Type.Number({ minimum: 0, description, examples: [example] });
const byteCount = (description: string, example: number) =>
  Type.Integer({ minimum: 0, description, examples: [example] });

const Usage = named('Usage', {
  instance_id: idOf('inst', { description: 'It may be deleted' }),
  start: Type.String({ format: 'date-time', description: 'When the hour or day begins, in UTC' }),
  running_seconds: amount('How long a VM ran', 3600),
  cpu_seconds: amount('Processor time of the VM, with the emulation of its devices', 412.5),
  memory_gib_hours: amount('Memory of the running VM, times hours', 0.5),
  stored_gib_hours: amount('Bytes in object storage, times hours; shared ones count for each instance', 0.71),
  flushed_bytes: byteCount('Written by the guest and saved to object storage', 12_582_912),
  http_bytes: byteCount('Passed by HTTP ports, in both directions', 1_048_576),
});

export function registerUsage(app: App, { db }: AppContext, cursors: CursorSealer): void {
  app.route({
    method: 'GET',
    url: '/v1/usage',
    config: { access: 'instances:read' },
    schema: {
      operationId: 'listUsage',
      summary: "List what the organisation's instances used",
      description:
        'One entry for each instance and hour or day in which it used something, the newest first. Deleted instances are included. An entry is at most a minute behind and is kept for 13 months.',
      tags: ['Instances'],
      querystring: pageQuery(200, {
        from: time(`Only hours or days from this time on: RFC 3339; default: ${DEFAULT_DAYS} days ago`),
        to: time('Only hours or days that begin before this time: RFC 3339; default: now'),
        interval: Type.Optional(oneOf(INTERVALS, { default: 'hour' })),
        instance: Type.Optional(
          Type.String({
            maxLength: 64,
            pattern: PRINTABLE_PATTERN,
            description: 'Only the instance with this id',
          }),
        ),
      }),
      response: { 200: pageOf(Usage) },
    },
    handler: (request) => {
      const principal = principalOf(request);
      const { from, to, interval = 'hour', instance } = request.query;
      const until = to === undefined ? new Date() : readTime('to', to);
      const since =
        from === undefined ? new Date(until.getTime() - DEFAULT_DAYS * DAY_MS) : readTime('from', from);
      if (since > until) throw invalid('from', 'must not be after `to`');
      if (instance !== undefined && !isId('inst', instance))
        throw invalid('instance', 'must be an instance id');
      const filter = {
        ...{ since, until, interval },
        ...(instance === undefined ? {} : { instance_id: instance as InstanceId }),
      };
      return pageOfList(cursors, principal, request, {
        route: 'usage',
        list: (before, count) => listUsage(db, principal.org_id, filter, before, count),
        show: usageView,
      });
    },
  });
}

const HOUR_S = 3_600;
const GIB = 2 ** 30;

function usageView(row: UsageRow) {
  return {
    instance_id: row.instance_id,
    start: rfc3339(row.start),
    running_seconds: rounded(row.running_seconds, 1),
    cpu_seconds: rounded(row.cpu_seconds, 3),
    memory_gib_hours: rounded(row.memory_mib_seconds / 1024 / HOUR_S, 6),
    stored_gib_hours: rounded(row.stored_byte_seconds / GIB / HOUR_S, 6),
    flushed_bytes: row.flushed_bytes,
    http_bytes: row.http_bytes,
  };
}

function rounded(value: number, digits: number): number {
  return Math.round(value * 10 ** digits) / 10 ** digits;
}
