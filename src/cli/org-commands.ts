/** `berth org …` and `berth audit …` on the server. */
import { listLogs } from '../control-plane/audit/store.ts';
import { type Db, transaction } from '../control-plane/db/pool.ts';
import { type QuotaChange, readQuota, setQuota } from '../control-plane/organisations/quotas.ts';
import type { OrgId } from '../shared/ids.ts';
import { ORGANISATION_QUOTAS, type OrganisationQuota, parseLimit, UNLIMITED } from '../shared/quotas.ts';
import { CommandError } from './command-error.ts';
import { EXIT } from './exit-codes.ts';
import type { ServerContext } from './server-context.ts';
import { numberCell, plural, quotaText, table } from './table.ts';
import type { Terminal } from './terminal.ts';

/** An organisation by id or name; a name must be unambiguous. */
async function findOrg(db: Db, text: string): Promise<{ id: OrgId; name: string }> {
  const found = await db
    .selectFrom('organisations')
    .select(['id', 'name'])
    .where((eb) => eb.or([eb('id', '=', text as OrgId), eb('name', '=', text)]))
    .limit(2)
    .execute();
  const [first, second] = found;
  if (!first)
    throw new CommandError(`there is no organisation ${text}; berth org quota lists them`, {
      exit_code: EXIT.not_found,
    });
  if (second) throw new CommandError(`several organisations are called ${text}; give the id of one`);
  return first;
}

export async function listOrgs({ db }: ServerContext, terminal: Terminal): Promise<string> {
  const rows = await db
    .selectFrom('organisations as o')
    .select([
      'o.id',
      'o.name',
      (eb) =>
        eb
          .selectFrom('memberships as m')
          .select(eb.fn.countAll<number>().as('n'))
          .whereRef('m.org_id', '=', 'o.id')
          .as('members'),
    ])
    .orderBy('o.id', 'desc')
    .execute();
  return terminal.listText(rows, {
    headings: ['NAME', 'MEMBERS', 'ID'],
    row: ({ id, name, members }) => [name, numberCell(members ?? 0), id],
    quiet: ({ id }) => id,
    empty: 'No organisations.',
  });
}

/** Changes the given quotas (a number, `unlimited` or `default`), then shows all quotas of the organisation. */
export async function orgQuota(
  { db, audit, config }: ServerContext,
  org: string,
  change: Partial<Record<OrganisationQuota, string>>,
): Promise<string> {
  const { id, name } = await findOrg(db, org);
  const limits: QuotaChange = {};
  for (const [quota, text] of Object.entries(change) as [OrganisationQuota, string][]) {
    const limit = text === 'default' ? text : parseLimit(text);
    if (limit === undefined) {
      throw new CommandError(
        `--${quota.replaceAll('_', '-')} takes a whole number up to 2147483647, unlimited or default, not ${text}`,
        { exit_code: EXIT.usage },
      );
    }
    limits[quota] = limit;
  }
  if (Object.keys(limits).length > 0) {
    await transaction(db, async (tx) => {
      await setQuota(tx, id, limits);
      const entry = { actor: 'operator', action: 'org.change_quota', target: id, ip: null, request_id: null };
      await audit.append(tx, id, { ...entry, data: limits });
    });
  }
  const states = await readQuota(db, config.quotas, id);
  const rows = ORGANISATION_QUOTAS.map((quota) => {
    const { used, limit, source } = states[quota];
    const text = (value: number) => quotaText(quota, value);
    // The name of the option that sets it.
    const option = quota.replaceAll('_', '-');
    return [option, text(used), limit === null ? UNLIMITED : text(limit), source];
  });
  return `${name} (${id})\n${table(['QUOTA', 'USED', 'LIMIT', 'FROM'], rows)}`;
}

interface Logged {
  readonly id: OrgId;
  /** Null: a deleted organisation, whose log stays. */
  readonly name: string | null;
}

/** The given organisation, or all, and deleted ones with an audit log. */
async function listLogged(db: Db, org: string | undefined): Promise<Logged[]> {
  const there = await db.selectFrom('organisations').select(['id', 'name']).orderBy('id').execute();
  const known = new Set(there.map(({ id }) => id));
  const deleted = (await listLogs(db)).filter((id) => !known.has(id));
  const logged = [...there, ...deleted.map((id) => ({ id, name: null }))];
  if (org === undefined) return logged;
  const gone = logged.find(({ id, name }) => id === org && name === null);
  return [gone ?? (await findOrg(db, org))];
}

/** Verifies the audit log of one organisation, or of all, deleted ones included. */
export async function verifyAudit({ db, audit }: ServerContext, org: string | undefined): Promise<string> {
  const orgs = await listLogged(db, org);
  let text = '';
  const broken: string[] = [];
  for (const { id, name } of orgs) {
    const { entries, broken_at, unsealed, altered } = await audit.verify(db, id);
    const org_name = name === null ? `${id}, deleted` : `${name} (${id})`;
    if (broken_at !== null) broken.push(`${org_name}: entry ${broken_at} was changed, removed or inserted`);
    if (altered !== null)
      broken.push(`${org_name}: entry ${altered}, not sealed yet, was changed or inserted`);
    if (broken_at !== null || altered !== null) continue;
    text += `${org_name}: ${plural(entries, 'entry', 'entries')}, intact${unsealed > 0 ? `; ${unsealed} more not yet sealed` : ''}\n`;
  }
  if (broken.length > 0) throw new CommandError(broken.join('\n'));
  return text;
}
