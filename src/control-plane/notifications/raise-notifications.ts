/**
 * Raises a notification for each user or service account that an event concerns. It is a consumer of the outbox of
 * events, and runs in the dispatcher's transaction. So each event is handled exactly once, in the order of positions.
 */
import { present } from '../../shared/assert.ts';
import { rfc3339 } from '../../shared/clock.ts';
import { isId, newId, type UserId } from '../../shared/ids.ts';
import { notify } from '../db/notify.ts';
import type { Tx } from '../db/pool.ts';
import { type NumberedEvent, type PlacedEvent, readEvents } from '../events/store.ts';
import { type Content, compose, raisesNotification } from './compose.ts';
import { KINDS } from './model.ts';
import { lockPeople, type People, type Raise, type Recipient, raise } from './store.ts';

type Undated = Omit<Raise, 'id' | 'raised_at'>;

interface Draft {
  readonly event: NumberedEvent;
  readonly content: Content;
}

export async function raiseNotifications(tx: Tx, placed: readonly PlacedEvent[]): Promise<void> {
  const events = await readEvents(tx, placed.filter(raisesNotification));
  const drafts = events.flatMap((event): Draft[] => {
    const content = compose(event);
    return content === null ? [] : [{ event, content }];
  });
  if (drafts.length === 0) return;
  const people = await lookUp(tx, drafts);
  const raises = new Map<string, Undated>();
  for (const draft of drafts) {
    const { kind, resource } = draft.content;
    for (const recipient of recipientsOf(draft.content, people)) {
      const key = JSON.stringify([recipient, kind, resource?.id ?? null]);
      raises.set(key, raiseOf(draft, recipient, people, raises.get(key)));
    }
  }
  await raise(tx, dated([...raises.values()]));
  for (const recipient of new Set([...raises.values()].map((each) => each.recipient))) {
    await notify(tx, 'notifications', recipient);
  }
  await notify(tx, 'mail');
}

async function lookUp(tx: Tx, drafts: readonly Draft[]): Promise<People> {
  const audiences = drafts.map(({ content }) => content.audience);
  const holders = [...new Set(audiences.flatMap((each) => each.holders))];
  return lockPeople(tx, {
    org_ids: [...new Set(audiences.flatMap(({ org_id }) => (org_id === null ? [] : [org_id])))],
    roles: [...new Set(audiences.flatMap(({ org_id, roles }) => roles.map((role) => `${org_id} ${role}`)))],
    user_ids: holders.filter((id) => isId('usr', id)),
    service_account_ids: holders.filter((id) => isId('sa', id)),
  });
}

function withRole(members: ReadonlyMap<UserId, string> | undefined, roles: readonly string[]): UserId[] {
  return [...(members ?? [])].filter(([, role]) => roles.includes(role)).map(([user_id]) => user_id);
}

/** Former members get none. */
function recipientsOf({ audience }: Content, { members, users, service_accounts }: People): Set<Recipient> {
  const { holders, roles, org_id } = audience;
  const of_org = org_id === null ? undefined : members.get(org_id);
  const found = new Set<Recipient>();
  for (const id of holders) {
    if (isId('usr', id) && users.has(id) && (org_id === null || of_org?.has(id) === true)) found.add(id);
    if (isId('sa', id) && org_id !== null && service_accounts.get(id) === org_id) found.add(id);
  }
  for (const user_id of withRole(of_org, roles)) if (users.has(user_id)) found.add(user_id);
  return found;
}

/** Repeats within a batch are one raise, with the content of the last. */
function raiseOf(
  { event, content }: Draft,
  recipient: Recipient,
  { users }: People,
  before: Undated | undefined,
): Undated {
  const { kind, title, body, resource, data, audience } = content;
  const address = isId('usr', recipient) ? (users.get(recipient) ?? null) : null;
  const mailed = content.mailed.some((each) => each.toLowerCase() === address?.toLowerCase());
  return {
    recipient,
    org_id: audience.org_id,
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

/** Ids, like positions, ascend in the order of the events. */
function dated(raises: readonly Undated[]): Raise[] {
  const now_ms = Date.now();
  const raised_at = rfc3339(new Date(now_ms));
  const ids = raises.map(() => newId('ntf', now_ms)).sort();
  return raises
    .toSorted((a, b) => a.position - b.position)
    .map((each, at) => ({ ...each, raised_at, id: present(ids[at], 'id') }));
}
