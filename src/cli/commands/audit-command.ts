/** `berth audit`: the audit log. */
import { AUDIT_ACTIONS, auditDetails, auditIds } from '../../../client/src/audit-words.ts';
import { type AuditEntry, type Berth, BerthError } from '../../../client/src/berth.ts';
import { actorWords } from '../../../client/src/event-words.ts';
import type { Call, Command } from '../command.ts';
import { collect } from '../reading.ts';
import { cell, numberCell, timeCell } from '../table.ts';
import { FILTERS, filterOf, LIMIT, mostOf, requireAction, requireActor, SEARCHED } from './log-filters.ts';

const MOST_NAMES = 1_000;

interface Named {
  readonly id: string;
  readonly name: string;
}

/** Some of the names may not be this caller's to read. */
async function namesOf(items: AsyncIterable<Named>): Promise<readonly (readonly [string, string])[]> {
  const found = await collect(items, MOST_NAMES).catch((error: unknown) => {
    if (error instanceof BerthError && [403, 404].includes(error.status)) return [];
    throw error;
  });
  return found.map(({ id, name }) => [id, name] as const);
}

/** The names of what the details of the entries mention by id: from the entries themselves, else asked for. */
async function mentioned({ session }: Call, berth: Berth, entries: readonly AuditEntry[]) {
  const names = new Map<string, string>();
  for (const { target, target_name } of entries.toReversed())
    if (target !== null && target_name !== null) names.set(target, target_name);
  const unknown = entries.flatMap(auditIds).filter((id) => !names.has(id));
  const lacks = (prefix: string) => unknown.some((id) => id.startsWith(prefix));
  const org_id = session.env['BERTH_API_KEY'] ? undefined : session.profile?.org_id;
  const lists = [
    ...(lacks('inst_') ? [namesOf(berth.instances.list({ limit: 200 }))] : []),
    ...(lacks('sa_') ? [namesOf(berth.list('listServiceAccounts', { query: { limit: 200 } }))] : []),
    ...(lacks('key_') && org_id !== undefined
      ? [namesOf(berth.list('listOrgSshKeys', { path: { id: org_id }, query: { limit: 200 } }))]
      : []),
  ];
  for (const [id, name] of (await Promise.all(lists)).flat()) names.set(id, name);
  return (id: string) => names.get(id);
}

/** `web (inst_…)`, or the id alone. */
const named = (id: string, name: string | null) => (name === null ? id : `${name} (${id})`);

async function audit(call: Call): Promise<undefined> {
  const { session, options, terminal } = call;
  const most = mostOf(call);
  const action = options.text('type');
  const query = { action, ...filterOf(call), limit: Math.max(1, Math.min(200, most)) };
  const berth = session.berth();
  const found = await collect(berth.list('listAudit', { query }), most);
  if (found.length === 0) {
    requireAction(action);
    await requireActor(call, query.actor, () =>
      collect(berth.list('listAudit', { query: { limit: 200 } }), SEARCHED),
    );
  }
  const nameOf = terminal.format === 'human' ? await mentioned(call, berth, found) : undefined;
  terminal.list(found, {
    headings: ['SEQ', 'WHEN', 'ACTOR', 'ACTION', 'TARGET', 'DETAILS', 'FROM'],
    row: (each) => [
      // Null until the entry is sealed, shortly after the request.
      numberCell(each.seq),
      timeCell(each.at),
      cell(actorWords(each.actor, each.actor_name), each.actor),
      each.action,
      cell(each.target === null ? '-' : named(each.target, each.target_name), each.target),
      cell(auditDetails(each, nameOf) || '-', JSON.stringify(each.data)),
      cell(each.ip ?? 'the server', each.ip),
    ],
    more: {
      headings: ['ACTOR NAME', 'TARGET NAME', 'REQUEST', 'ID'],
      row: ({ actor_name, target_name, request_id, id }) => [
        actor_name ?? '-',
        target_name ?? '-',
        request_id ?? '-',
        id,
      ],
    },
    quiet: ({ id }) => id,
    empty: 'No entries.',
  });
}

export const AUDIT: Command = {
  name: 'audit ls',
  short: ['audit'],
  details: `The actions: ${AUDIT_ACTIONS.join(', ')}.`,
  summary: 'show the audit log: who did what, when and from where',
  example: 'berth audit --since 7d --actor ada@example.org',
  options: {
    type: {
      type: 'string',
      value: 'ACTION',
      field: 'action',
      help: 'only of this action: vm.start, api_key.create, …',
    },
    ...FILTERS,
    ...LIMIT,
  },
  run: audit,
};
