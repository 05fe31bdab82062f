/** A host by its name, for commands on the server. */
import type { Tx } from '../control-plane/db/pool.ts';
import { type FleetHost, listFleet } from '../control-plane/fleet/fleet-store.ts';
import { lockUse } from '../control-plane/fleet/host-store.ts';
import { CommandError } from './command-error.ts';
import { EXIT } from './exit-codes.ts';

/** @throws CommandError */
export async function findHost(tx: Tx, name: string): Promise<FleetHost> {
  const found = (await listFleet(tx)).find((each) => each.name === name);
  if (!found)
    throw new CommandError(`there is no host ${name}`, {
      next: 'berth host ls',
      exit_code: EXIT.not_found,
    });
  return found;
}

/** Keeps placements away from it until the transaction's end. @throws CommandError */
export async function lockHost(tx: Tx, name: string): Promise<FleetHost> {
  await lockUse(tx, (await findHost(tx, name)).id);
  return findHost(tx, name);
}
