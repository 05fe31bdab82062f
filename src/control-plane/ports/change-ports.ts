/**
 * Publishes HTTP ports of an instance, changes who has access to them, and deletes them. Adds and removes custom
 * hostnames: a new one is pending until check-hostnames.ts makes it active.
 */
import { randomBytes } from 'node:crypto';
import { CUSTOM_HOSTNAMES_MAX } from '../../protocol/ingress-types.ts';
import { present } from '../../shared/assert.ts';
import { AppError } from '../../shared/errors.ts';
import { type HttpPortId, type InstanceId, newId, type OrgId } from '../../shared/ids.ts';
import type { PortAccess } from '../db/column-types.ts';
import { notify } from '../db/notify.ts';
import type { Tx } from '../db/pool.ts';
import { append } from '../events/append.ts';
import { actorOf, type Principal } from '../identity/principal.ts';
import { lockInstanceOf, refuseDeleting } from '../instances/change-instance.ts';
import { instanceView } from '../instances/model.ts';
import { findInstance } from '../instances/store.ts';
import { type HttpEndpoint, newLabel, PORTS_AN_INSTANCE, portRecord } from './model.ts';
import {
  claimLabel,
  countPorts,
  deleteHostname,
  deletePort,
  findPort,
  type HostnameRow,
  insertHostname,
  insertPort,
  markChanged,
  type PortRow,
  setAccess,
} from './store.ts';

/** Called with the locked row; throws to refuse the change. */
export type HostnameCheck = (before: PortRow) => void;

/** @throws AppError NOT_FOUND, CONFLICT, QUOTA_EXCEEDED */
export async function createPort(
  tx: Tx,
  endpoint: HttpEndpoint,
  principal: Principal,
  instance_id: InstanceId,
  { port, access }: { readonly port: number; readonly access: PortAccess },
): Promise<PortRow> {
  const instance = await lockInstanceOf(tx, principal, instance_id);
  refuseDeleting(instance);
  const used = await countPorts(tx, instance_id);
  if (used >= PORTS_AN_INSTANCE) {
    throw new AppError('QUOTA_EXCEEDED', {
      message: `An instance has at most ${PORTS_AN_INSTANCE} HTTP ports. Delete one first.`,
      details: [{ field: 'ports', issue: `quota ${PORTS_AN_INSTANCE}, used ${used}, wanted 1` }],
    });
  }
  const id = newId('port');
  let label: string;
  do label = newLabel(instance.name, randomBytes(8));
  while (!(await claimLabel(tx, label)));
  await insertPort(tx, { id, instance_id, label, port, access });
  const row = present(await findPort(tx, instance_id, id), 'port just made');
  await announcePort(tx, endpoint, row, {
    type: 'port.created',
    org_id: principal.org_id,
    actor: actorOf(principal),
  });
  return row;
}

/** @throws AppError NOT_FOUND, CONFLICT */
export async function changeAccess(
  tx: Tx,
  endpoint: HttpEndpoint,
  principal: Principal,
  { instance_id, id }: PortRef,
  access: PortAccess | undefined,
  check: HostnameCheck,
): Promise<PortRow> {
  const before = await lockedPort(tx, principal, { instance_id, id });
  check(before);
  if (access === undefined || access === before.access) return before;
  await setAccess(tx, id, access);
  const row = present(await findPort(tx, instance_id, id), 'port after its change');
  await announcePort(tx, endpoint, row, {
    type: 'port.changed',
    change: { access },
    org_id: principal.org_id,
    actor: actorOf(principal),
  });
  return row;
}

/** Its hostname is never assigned again. @throws AppError NOT_FOUND, CONFLICT */
export async function removePort(
  tx: Tx,
  endpoint: HttpEndpoint,
  principal: Principal,
  { instance_id, id }: PortRef,
  check: HostnameCheck,
): Promise<PortRow> {
  const row = await lockedPort(tx, principal, { instance_id, id });
  check(row);
  await deletePort(tx, id);
  await announcePort(tx, endpoint, row, {
    type: 'port.deleted',
    org_id: principal.org_id,
    actor: actorOf(principal),
  });
  return row;
}

export interface PortRef {
  readonly instance_id: InstanceId;
  readonly id: HttpPortId;
}

/** Locks the port's instance, and with it the port. @throws AppError NOT_FOUND, CONFLICT when the instance is being deleted */
export async function lockedPort(
  tx: Tx,
  principal: Principal,
  { instance_id, id }: PortRef,
): Promise<PortRow> {
  const instance = await lockInstanceOf(tx, principal, instance_id);
  const row = await findPort(tx, instance_id, id);
  if (!row) throw new AppError('NOT_FOUND');
  refuseDeleting(instance);
  return row;
}

type PortChange =
  | { readonly access: PortAccess }
  | { readonly hostname: string; readonly is: 'added' | 'removed' | 'active' | 'pending' };

interface PortEvent {
  readonly type: 'port.created' | 'port.changed' | 'port.deleted';
  /** Of `port.changed`. */
  readonly change?: PortChange;
  readonly org_id: OrgId;
  readonly actor: string;
}

/** Appends the event, and brings the ingress its new routes. */
export async function announcePort(
  tx: Tx,
  endpoint: HttpEndpoint,
  row: PortRow,
  { type, change, org_id, actor }: PortEvent,
): Promise<void> {
  const { instance_id } = row;
  const instance = present(await findInstance(tx, org_id, instance_id), 'instance of a port');
  const port = portRecord(endpoint, row);
  const data = { instance: instanceView(instance), port, ...(change === undefined ? {} : { change }) };
  await append(tx, { org_id, instance_id, type, data, actor });
  await notify(tx, 'routes', instance_id);
}

/** @param hostname as `readHostname` returns it. @throws AppError NOT_FOUND, CONFLICT, QUOTA_EXCEEDED */
export async function addHostname(
  tx: Tx,
  endpoint: HttpEndpoint,
  principal: Principal,
  place: PortRef,
  hostname: string,
): Promise<HostnameRow> {
  const { hostnames } = await lockedPort(tx, principal, place);
  if (hostnames.some((each) => each.hostname === hostname))
    throw new AppError('CONFLICT', { message: `The port has the hostname ${hostname} already.` });
  if (hostnames.length >= CUSTOM_HOSTNAMES_MAX) {
    throw new AppError('QUOTA_EXCEEDED', {
      message: `A port has at most ${CUSTOM_HOSTNAMES_MAX} custom hostnames. Delete one first.`,
      details: [
        {
          field: 'hostnames',
          issue: `quota ${CUSTOM_HOSTNAMES_MAX}, used ${hostnames.length}, wanted 1`,
        },
      ],
    });
  }
  await insertHostname(tx, place.id, hostname, randomBytes(20).toString('hex'));
  const row = await changed(tx, endpoint, principal, place, { hostname, is: 'added' });
  return present(
    row.hostnames.find((each) => each.hostname === hostname),
    'hostname just added',
  );
}

/** @throws AppError NOT_FOUND, CONFLICT */
export async function removeHostname(
  tx: Tx,
  endpoint: HttpEndpoint,
  principal: Principal,
  place: PortRef,
  hostname: string,
): Promise<void> {
  const { hostnames } = await lockedPort(tx, principal, place);
  if (!hostnames.some((each) => each.hostname === hostname)) throw new AppError('NOT_FOUND');
  await deleteHostname(tx, place.id, hostname);
  await changed(tx, endpoint, principal, place, { hostname, is: 'removed' });
}

async function changed(
  tx: Tx,
  endpoint: HttpEndpoint,
  principal: Principal,
  { instance_id, id }: PortRef,
  change: { readonly hostname: string; readonly is: 'added' | 'removed' },
): Promise<PortRow> {
  await markChanged(tx, id);
  const row = present(await findPort(tx, instance_id, id), 'port after its change');
  await announcePort(tx, endpoint, row, {
    type: 'port.changed',
    change,
    org_id: principal.org_id,
    actor: actorOf(principal),
  });
  return row;
}
