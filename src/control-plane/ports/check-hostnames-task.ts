import { Resolver } from 'node:dns/promises';
import type { Db } from '../db/pool.ts';
import { checkHostnames as check } from './check-hostnames.ts';
import type { HttpEndpoint } from './model.ts';

/** Longer than the task's interval would hold up the next run. */
const LOOK_UP = { timeout: 2_000, tries: 2 };

/** Looks up the TXT records of custom hostnames that are due, by the machine's own name servers. */
export async function checkHostnames(db: Db, endpoint: HttpEndpoint): Promise<void> {
  const resolver = new Resolver(LOOK_UP);
  await check(db, endpoint, (name) => resolver.resolveTxt(name));
}
