/**
 * The outbox's consumer: one notification for each user or service account that an event concerns. It runs in the
 * dispatcher's transaction, so each event is told exactly once, in the order of positions.
 */
import { notify } from '../db/notify.ts';
import type { Tx } from '../db/pool.ts';
import { type NumberedEvent, type PlacedEvent, readEvents } from '../events/store.ts';
import { present } from '../lib/assert.ts';
import { rfc3339 } from '../lib/clock.ts';
import { isId, newId, type UserId } from '../lib/ids.ts';
import { compose, isTold, type Told } from './compose.ts';
import { KINDS } from './model.ts';
import { holdPeople, type People, type Raise, type Recipient, raise } from './store.ts';

type Undated = Omit<Raise, 'id' | 'raised_at'>;

interface Telling {
  readonly event: NumberedEvent;
  readonly told: Told;
}

export async function raiseNotifications(tx: Tx, placed: readonly PlacedEvent[]): Promise<void> {
  const events = await readEvents(tx, placed.filter(isTold));
  const tellings = events.flatMap((event): Telling[] => {
    const told = compose(event);
    return told === null ? [] : [{ event, told }];
  });
  if (tellings.length === 0) return;
  const people = await lookUp(tx, tellings);
  const raises = new Map<string, Undated>();
  for (const telling of tellings) {
    for (const recipient of recipientsOf(telling.told, people)) {
      const key = JSON.stringify([recipient, telling.told.kind, telling.told.resource?.id ?? null]);
      raises.set(key, raiseOf(telling, recipient, people, raises.get(key)));
    }
  }
  await raise(tx, dated([...raises.values()]));
  for (const recipient of new Set([...raises.values()].map((each) => each.recipient))) {
    await notify(tx, 'notifications', recipient);
  }
  await notify(tx, 'mail');
}

async function lookUp(tx: Tx, tellings: readonly Telling[]): Promise<People> {
  const concerned = tellings.map(({ told }) => told.concerned);
  const holders = [...new Set(concerned.flatMap((each) => each.holders))];
  return holdPeople(tx, {
    org_ids: [...new Set(concerned.flatMap(({ org_id }) => (org_id === null ? [] : [org_id])))],
    roles: [...new Set(concerned.flatMap(({ org_id, roles }) => roles.map((role) => `${org_id} ${role}`)))],
    user_ids: holders.filter((id) => isId('usr', id)),
    service_account_ids: holders.filter((id) => isId('sa', id)),
  });
}

function withRole(members: ReadonlyMap<UserId, string> | undefined, roles: readonly string[]): UserId[] {
  return [...(members ?? [])].filter(([, role]) => roles.includes(role)).map(([user_id]) => user_id);
}

/** Who has left the organisation is not told of it any more. */
function recipientsOf({ concerned }: Told, { members, users, service_accounts }: People): Set<Recipient> {
  const { holders, roles, org_id } = concerned;
  const of_org = org_id === null ? undefined : members.get(org_id);
  const found = new Set<Recipient>();
  for (const id of holders) {
    if (isId('usr', id) && users.has(id) && (org_id === null || of_org?.has(id) === true)) found.add(id);
    if (isId('sa', id) && org_id !== null && service_accounts.get(id) === org_id) found.add(id);
  }
  for (const user_id of withRole(of_org, roles)) if (users.has(user_id)) found.add(user_id);
  return found;
}

/** Repeats within a batch are one, with the last one's words. */
function raiseOf(
  { event, told }: Telling,
  recipient: Recipient,
  { users }: People,
  before: Undated | undefined,
): Undated {
  const { kind, title, body, resource, data } = told;
  const address = isId('usr', recipient) ? (users.get(recipient) ?? null) : null;
  const mailed = told.mailed.some((each) => each.toLowerCase() === address?.toLowerCase());
  return {
    recipient,
    org_id: told.concerned.org_id,
    kind,
    title,
    body,
    resource_type: resource?.type ?? null,
    resource_id: resource?.id ?? null,
    data,
    count: (before?.count ?? 0) + 1,
    position: event.position,
    event_id: event.id,
    mailable: KINDS[kind].mail !== 'elsewhere' && !mailed && address !== null,
    mail_always: KINDS[kind].mail === 'always',
  };
}

/** Their order is that of their events: by position, by id, and by time. */
function dated(raises: readonly Undated[]): Raise[] {
  const now_ms = Date.now();
  const raised_at = rfc3339(new Date(now_ms));
  const ids = raises.map(() => newId('ntf', now_ms)).sort();
  return raises
    .toSorted((a, b) => a.position - b.position)
    .map((each, at) => ({ ...each, raised_at, id: present(ids[at], 'id') }));
}
