/** HTTP ports, inserted into the database directly. */
import type { PortAccess } from '../../src/control-plane/db/column-types.ts';
import type { Db } from '../../src/control-plane/db/pool.ts';
import { claimLabel, insertPort } from '../../src/control-plane/ports/store.ts';
import { type HttpPortId, type InstanceId, newId } from '../../src/shared/ids.ts';

export async function makePort(
  db: Db,
  instance_id: InstanceId,
  { port = 8080, access = 'private' as PortAccess } = {},
): Promise<HttpPortId> {
  const id = newId('port');
  const label = `web-${id.slice(-8)}`;
  await claimLabel(db, label);
  await insertPort(db, { id, instance_id, label, port, access });
  return id;
}
