import { Type } from 'typebox';
import { listAudit } from '../../audit/store.ts';
import { rfc3339 } from '../../lib/clock.ts';
import { principalOf } from '../access.ts';
import type { App } from '../app.ts';
import type { AppContext } from '../context.ts';
import { type CursorSealer, pageOfList } from '../pagination.ts';
import { COMMON, errors, named, nullable, pageOf, pageQuery, Time } from '../schemas.ts';
import { AUDIT_WORD_PATTERN } from '../validation-words.ts';

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
  Type.String({ minLength: 1, maxLength: 100, pattern: AUDIT_WORD_PATTERN, description });

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
    handler: (request) => {
      const principal = principalOf(request);
      return pageOfList(cursors, principal, request, {
        route: 'audit',
        list: (before, count) => listAudit(db, principal.org_id, request.query, before, count),
        show: (row) => ({ ...row, at: rfc3339(row.at) }),
      });
    },
  });
}
