/**
 * Serves `GET /v1/audit`: lists an organisation's audit log in pages, filtered by action, actor and time. Each entry
 * comes with the present or last names of its actor and target.
 */
import { Type } from 'typebox';
import { rfc3339 } from '../../shared/clock.ts';
import type { AppContext } from '../context.ts';
import { LOG_FILTERS, logFilter } from '../events/log-filters.ts';
import { principalOf } from '../http/access.ts';
import { AUDIT_WORD_PATTERN } from '../http/errors.ts';
import type { App } from '../http/mutate.ts';
import { type CursorSealer, pageOfList } from '../http/pagination.ts';
import { idOf, named, nullable, pageOf, pageQuery, Time } from '../http/schemas.ts';
import { auditNames, listAudit } from './store.ts';

const AuditEntry = named('AuditEntry', {
  id: idOf('aud'),
  seq: nullable(
    Type.Integer({
      description: "The entry's number in the organisation's chain; null until the entry is sealed",
      examples: [17],
    }),
  ),
  at: Time,
  actor: Type.String({ examples: ['usr_01k5x8m2vq7r4t9wz3b6c8d0ef'] }),
  actor_name: nullable(
    Type.String({
      description:
        'The e-mail address of the member, or the name of the service account; of a former member, the address at that time; null: not known',
      examples: ['ada@example.org'],
    }),
  ),
  action: Type.String({ examples: ['api_key.create'] }),
  target: nullable(Type.String({ examples: ['ak_01k5x8m2vq7r4t9wz3b6c8d0ef'] })),
  target_name: nullable(
    Type.String({
      description: 'The present name of the target, or its last one; null: it has none',
      examples: ['ci'],
    }),
  ),
  ip: nullable(Type.String({ examples: ['203.0.113.7'] })),
  request_id: nullable(Type.String({ examples: ['req_5f2b8c1e9d3a4b7c6e0f1a2d'] })),
  data: Type.Record(Type.String(), Type.Unknown()),
});

const Action = Type.String({
  minLength: 1,
  maxLength: 100,
  pattern: AUDIT_WORD_PATTERN,
  description: 'Only entries with exactly this action',
});

export function registerAudit(app: App, { db }: AppContext, cursors: CursorSealer): void {
  app.route({
    method: 'GET',
    url: '/v1/audit',
    config: { access: 'audit:read', roles: ['owner', 'admin'] },
    schema: {
      operationId: 'listAudit',
      summary: 'List the audit log: who did what, when and from where',
      tags: ['Audit'],
      querystring: pageQuery(200, {
        action: Type.Optional(Action),
        ...LOG_FILTERS,
      }),
      response: { 200: pageOf(AuditEntry) },
    },
    handler: (request) => {
      const principal = principalOf(request);
      const { org_id } = principal;
      const { action } = request.query;
      return pageOfList(cursors, principal, request, {
        route: 'audit',
        list: async (before, count) => {
          const more = await logFilter(db, org_id, request.query);
          if (more === null) return [];
          const filter = { ...more, ...(action === undefined ? {} : { action }) };
          const rows = await listAudit(db, org_id, filter, before, count);
          const names = await auditNames(
            db,
            org_id,
            rows.flatMap(({ actor, target }) => [actor, target]),
          );
          const nameOf = (id: string | null) => (id === null ? null : (names.get(id) ?? null));
          return rows.map((row) => ({
            ...row,
            at: rfc3339(row.at),
            actor_name: nameOf(row.actor),
            target_name: nameOf(row.target),
          }));
        },
        show: (row) => row,
      });
    },
  });
}
