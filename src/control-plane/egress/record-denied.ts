/**
 * Records the denied destinations that a host reports, and raises the event `egress.denied` for some of them. A host
 * may report only about instances whose newest VM is or was on this host.
 */
import type { DeniedDestination, DeniedReport } from '../../protocol/host-types.ts';
import { present } from '../../shared/assert.ts';
import { rfc3339 } from '../../shared/clock.ts';
import type { HostId, InstanceId } from '../../shared/ids.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import { append } from '../events/append.ts';
import { instanceView } from '../instances/model.ts';
import { getInstance } from '../instances/store.ts';
import {
  addDenied,
  claimEvents,
  type DeniedRow,
  listOn,
  type NewDenied,
  trimDenied,
} from './denied-store.ts';

/** A denied destination as the API shows it. */
export function deniedView({ at, name, address, port, attempts }: DeniedRow) {
  return {
    at: rfc3339(at),
    ...(name === null ? {} : { name }),
    ...(address === null ? {} : { address }),
    ...(port === 0 ? {} : { port }),
    count: attempts,
  };
}

/** Events of one instance in ten minutes: a guest that scans addresses must not fill the organisation's events. */
const EVENTS_MAX = 10;
/** Reports may wait while the control plane is away. */
const OLDEST_MS = 3_600_000;

export async function recordDenied(
  db: Db,
  host_id: HostId,
  { denials }: DeniedReport,
): Promise<'accepted' | 'fenced'> {
  const by_instance = Map.groupBy(denials, ({ instance_id }) => instance_id);
  const known = await listOn(db, host_id, [...by_instance.keys()]);
  for (const id of known) {
    const denied = merged(by_instance.get(id) ?? []);
    if (denied.length === 0) continue;
    await transaction(db, (tx) => recordOf(tx, host_id, id, denied));
  }
  return denials.length > 0 && known.length === 0 ? 'fenced' : 'accepted';
}

async function recordOf(
  tx: Tx,
  host_id: HostId,
  id: InstanceId,
  denied: readonly NewDenied[],
): Promise<void> {
  await addDenied(tx, id, denied);
  const announced = await claimEvents(tx, id, denied, EVENTS_MAX);
  await trimDenied(tx, id);
  if (announced.length === 0) return;
  const row = present(await getInstance(tx, id), 'instance of a denied attempt');
  for (const each of announced) {
    await append(tx, {
      org_id: row.org_id,
      instance_id: id,
      type: 'egress.denied',
      data: { instance: instanceView(row), denied: deniedView(each) },
      actor: host_id,
    });
  }
}

/** One row for each destination: a name and a port, or an address and a port where no name is known. */
function merged(denials: readonly DeniedDestination[]): NewDenied[] {
  const now_ms = Date.now();
  const rows = new Map<string, NewDenied>();
  for (const { name, address, port, count, at } of denials) {
    const destination = name ?? address;
    if (destination === null) continue;
    const key = `${destination} ${port ?? 0}`;
    const before = rows.get(key);
    const at_ms = Math.min(now_ms, Math.max(now_ms - OLDEST_MS, Date.parse(at)));
    rows.set(key, {
      destination,
      port: port ?? 0,
      name,
      address: address ?? before?.address ?? null,
      at: new Date(Math.max(at_ms, before?.at.getTime() ?? 0)),
      attempts: count + (before?.attempts ?? 0),
    });
  }
  return [...rows.values()];
}
