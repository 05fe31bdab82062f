/** The page of the organisation's audit log, for owners and admins, with filters by action, actor and time. */
import { useState } from 'preact/hooks';
import { AUDIT_ACTIONS, auditDetails } from '../../../client/src/audit-words.ts';
import type { AuditEntry } from '../../../client/src/berth.ts';
import { actorWords } from '../../../client/src/event-words.ts';
import { call } from '../api.ts';
import { exactly } from '../format.ts';
import { instances } from '../live/instances.ts';
import { leads } from '../live/membership.ts';
import { Select } from '../ui/field.tsx';
import { LogFilter, type LogFilterValues } from '../ui/log-filter.tsx';
import { Empty, PageHead } from '../ui/page.tsx';
import { ListTable } from '../ui/table.tsx';
import { useList } from '../use-query.ts';

export function AuditPage() {
  return (
    <>
      <PageHead
        title="Audit log"
        lead={
          <>
            Who changed what, when and from where. Each entry holds the hash of the entry before it, so that{' '}
            <code>berth audit verify</code> on the server finds any later change.
          </>
        }
      />
      {leads() ? (
        <Entries />
      ) : (
        <Empty icon="audit" title="For owners and admins">
          <p>Only owners and admins may read the audit log.</p>
        </Empty>
      )}
    </>
  );
}

function Entries() {
  const [filter, setFilter] = useState<LogFilterValues>({});
  const { type, ...others } = filter;
  const wanted = { ...others, ...(type === undefined ? {} : { action: type }) };
  const list = useList(`audit ${JSON.stringify(filter)}`, (query) =>
    call('listAudit', { query: { ...wanted, ...query } }),
  );
  return (
    <>
      <LogFilter type={<ActionField />} value={filter} onChange={setFilter} />
      <ListTable
        list={list}
        lines={8}
        empty={
          <Empty icon="audit" title="No entry matches">
            <p>Change or clear the filter.</p>
          </Empty>
        }
        columns={[
          { head: 'Action', cell: (entry) => <Action entry={entry} /> },
          {
            head: 'When',
            class: 'nowrap when',
            below: true,
            cell: ({ at }) => exactly(at),
          },
          {
            head: 'By',
            class: 'roomy',
            below: true,
            cell: ({ actor, actor_name }) => <Actor id={actor} name={actor_name} />,
          },
          { head: 'Target', class: 'roomy', below: true, cell: (entry) => <Target entry={entry} /> },
          { head: 'From', class: 'nowrap', below: true, cell: ({ ip }) => ip ?? 'the server' },
          { head: 'No.', class: 'number wide-only', cell: ({ seq }) => seq ?? '' },
        ]}
      />
    </>
  );
}

function ActionField() {
  const groups = Map.groupBy(AUDIT_ACTIONS, (action) => action.split('.')[0] ?? '');
  return (
    <Select label="Action" name="type">
      <option value="">All actions</option>
      {[...groups].map(([group, actions]) => (
        <optgroup key={group} label={group.replaceAll('_', ' ')}>
          {actions.map((action) => (
            <option key={action} value={action}>
              {action}
            </option>
          ))}
        </optgroup>
      ))}
    </Select>
  );
}

/** The details distinguish entries of the same action and target. */
function Action({ entry }: { readonly entry: AuditEntry }) {
  const { action } = entry;
  const details = auditDetails(entry, (id) => instances.value?.find((each) => each.id === id)?.name);
  return (
    <>
      <code>{action}</code>
      {details !== '' && <div class="dim wrap">{details}</div>}
    </>
  );
}

/** What a target without a name is, by the prefix of its id. */
const KINDS: Readonly<Record<string, string>> = {
  ...{ sess: 'session', port: 'HTTP port', inv: 'invitation', usr: 'account', mfa: 'second factor' },
  ...{ inst: 'instance', vm: 'VM', ak: 'API key', sa: 'service account', key: 'SSH key', wh: 'webhook' },
  ...{ org: 'organisation', host: 'host', evt: 'event' },
};

/** The name of the target, or what it is, and its id. An instance that exists is a link. */
function Target({ entry: { target, target_name } }: { readonly entry: AuditEntry }) {
  if (target === null) return null;
  const present = instances.value?.find(({ id }) => id === target)?.name;
  return (
    <>
      {present !== undefined && (
        <div>
          <a href={`/instances/${present}`}>{present}</a>
        </div>
      )}
      {present === undefined && <div class="wrap">{target_name ?? KINDS[target.split('_')[0] ?? '']}</div>}
      <code class={target_name === null ? 'wrap dim' : 'wrap dim wide-only'}>{target}</code>
    </>
  );
}

/** Who acted: the name if it is known, with the id as tooltip. */
function Actor({ id, name }: { readonly id: string; readonly name: string | null }) {
  const words = actorWords(id, name);
  if (words === id) return <code class="wrap">{id}</code>;
  return (
    <span class="wrap" title={id}>
      {words}
    </span>
  );
}
