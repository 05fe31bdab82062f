import { Type } from 'typebox';
import { listAudit } from '../../audit/store.ts';
import { rfc3339 } from '../../lib/clock.ts';
import { principalOf } from '../access.ts';
import type { App } from '../app.ts';
import type { AppContext } from '../context.ts';
import { type CursorSealer, page } from '../pagination.ts';
import { readLimit } from '../query.ts';
import { COMMON, errors, named, nullable, pageOf, pageQuery, Time } from '../schemas.ts';

const AuditEntry = named('AuditEntry', {
  id: Type.String(),
  seq: nullable(
    Type.Integer({
      description: 'Place in the chain of the organisation; null for the moment until it has one',
    }),
  ),
  at: Time,
  actor: Type.String(),
  action: Type.String(),
  target: nullable(Type.String()),
  ip: nullable(Type.String()),
  request_id: nullable(Type.String()),
  data: Type.Record(Type.String(), Type.Unknown()),
});

const Word = (description: string) =>
  Type.String({ minLength: 1, maxLength: 100, pattern: '^[A-Za-z0-9_.-]+$', description });

export function registerAudit(app: App, { db }: AppContext, cursors: CursorSealer): void {
  app.route({
    method: 'GET',
    url: '/v1/audit',
    config: { access: 'audit:read', roles: ['owner', 'admin'] },
    schema: {
      operationId: 'listAudit',
      summary: 'Who did what, when and from where',
      tags: ['Audit'],
      querystring: pageQuery(200, {
        action: Type.Optional(Word('As entries have it, whole')),
        actor: Type.Optional(Word('The id of who did it')),
      }),
      response: { 200: pageOf(AuditEntry), ...errors(...COMMON) },
    },
    handler: async (request) => {
      const principal = principalOf(request);
      const { limit: limitText, cursor, ...filter } = request.query;
      const limit = readLimit(limitText, 200);
      const scope = { route: 'audit', principal, filter };
      const before = cursor === undefined ? null : cursors.open(scope, cursor);
      const rows = await listAudit(db, principal.org_id, filter, before, limit + 1);
      return page(cursors, scope, rows, limit, (row) => ({ ...row, at: rfc3339(row.at) }));
    },
  });
}
