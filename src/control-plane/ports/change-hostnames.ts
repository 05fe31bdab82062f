/** Custom hostnames of a port: added as pending, removed at any time. `check-hostnames.ts` makes them active. */
import { randomBytes } from 'node:crypto';
import { CUSTOM_HOSTNAMES_MAX } from '../../protocol/ingress-types.ts';
import { present } from '../../shared/assert.ts';
import { AppError } from '../../shared/errors.ts';
import type { Tx } from '../db/pool.ts';
import { actorOf, type Principal } from '../identity/principal.ts';
import { announcePort, lockedPort, type PortPlace } from './change-ports.ts';
import type { HttpEndpoint } from './model.ts';
import {
  deleteHostname,
  findPort,
  type HostnameRow,
  insertHostname,
  markChanged,
  type PortRow,
} from './store.ts';

/** @param hostname as `readHostname` returns it. @throws AppError NOT_FOUND, CONFLICT, QUOTA_EXCEEDED */
export async function addHostname(
  tx: Tx,
  endpoint: HttpEndpoint,
  principal: Principal,
  place: PortPlace,
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
  place: PortPlace,
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
  { instance_id, id }: PortPlace,
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
