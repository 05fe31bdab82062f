/** Fails the VMs of hosts that have not renewed their lease. */
import type { Db } from '../db/pool.ts';
import type { SilenceWatch } from '../hosts/silence.ts';
import type { Log } from '../lib/log.ts';
import { loseSilentHosts } from '../vms/lose-hosts.ts';

export async function expireHostLeases(db: Db, watch: SilenceWatch, log: Log): Promise<void> {
  await loseSilentHosts(db, watch, log);
}
