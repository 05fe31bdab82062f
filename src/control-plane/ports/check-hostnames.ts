/**
 * Checks custom hostnames: a hostname is active while its TXT record proves that the port's owner controls the name.
 *
 *   pending ── the record is found, and no other port is active there ──▶ active
 *   active ── a daily check finds another record or none ──▶ pending
 *
 * If a name server does not answer, nothing changes, and the check is repeated.
 */
import { Resolver } from 'node:dns/promises';
import { errnoOf } from '../../shared/errors.ts';
import { type Db, type Tx, transaction, violates } from '../db/pool.ts';
import { lockInstance } from '../instances/store.ts';
import { announcePort } from './change-ports.ts';
import { type HttpEndpoint, nextCheckS, txtRecord } from './model.ts';
import {
  activeOwner,
  type DueHostname,
  findInstanceOfPort,
  findPort,
  hurryCheck,
  listDueHostnames,
  markChanged,
  recordCheck,
  setActive,
} from './store.ts';

/** As `Resolver.resolveTxt` of Node's dns/promises. */
export type ResolveTxt = (name: string) => Promise<string[][]>;

const CHECKS_AT_ONCE = 100;
/** An active hostname whose name servers do not answer. */
const AGAIN_S = 300;
/** The name servers say that there is no such record. Any other failure says nothing. */
const ABSENT: readonly (string | undefined)[] = ['ENOTFOUND', 'ENODATA'];

type Found = 'found' | 'absent' | 'no answer';

/** Checks those that are due, and returns how many. */
export async function checkHostnames(
  db: Db,
  endpoint: HttpEndpoint,
  resolveTxt: ResolveTxt,
): Promise<number> {
  const due = await listDueHostnames(db, CHECKS_AT_ONCE);
  await Promise.all(
    due.map(async (each) => {
      const found = await look(resolveTxt, each);
      await transaction(db, (tx) => settle(tx, endpoint, each, found)).catch((error: unknown) => {
        // Two ports became active at the same time: the loser is checked again.
        if (!violates(error, 'http_hostnames_active')) throw error;
      });
    }),
  );
  return due.length;
}

async function look(resolveTxt: ResolveTxt, { hostname, proof }: DueHostname): Promise<Found> {
  const { name, value } = txtRecord(hostname, proof);
  try {
    const records = await resolveTxt(name);
    return records.some((parts) => parts.join('').trim() === value) ? 'found' : 'absent';
  } catch (error) {
    return ABSENT.includes(errnoOf(error)) ? 'absent' : 'no answer';
  }
}

async function settle(tx: Tx, endpoint: HttpEndpoint, due: DueHostname, found: Found): Promise<void> {
  const place = await findInstanceOfPort(tx, due.port_id);
  if (!place) return;
  // Before the port, as every change of a port does.
  await lockInstance(tx, place.instance_id);
  const next_s = nextCheckS(false, due.age_s);
  if (found === 'no answer') {
    const problem = `The name servers of ${due.hostname} did not answer.`;
    return recordCheck(tx, due, problem, due.active ? AGAIN_S : next_s);
  }
  if (found === 'absent') {
    await recordCheck(tx, due, 'There is no TXT record with this name and value.', next_s);
    if (due.active) await becomes(tx, endpoint, due, place, false);
    return;
  }
  const owner = await activeOwner(tx, due.hostname);
  if (owner !== null && owner !== due.port_id) {
    // The record of the other may be gone. The next check of this one then finds the hostname free.
    await hurryCheck(tx, owner, due.hostname);
    return recordCheck(tx, due, 'Another port has this hostname while its own TXT record exists.', next_s);
  }
  await recordCheck(tx, due, null, nextCheckS(true, due.age_s));
  if (!due.active) await becomes(tx, endpoint, due, place, true);
}

async function becomes(
  tx: Tx,
  endpoint: HttpEndpoint,
  due: DueHostname,
  { instance_id, org_id }: NonNullable<Awaited<ReturnType<typeof findInstanceOfPort>>>,
  active: boolean,
): Promise<void> {
  if (!(await setActive(tx, due, active))) return;
  await markChanged(tx, due.port_id);
  const row = await findPort(tx, instance_id, due.port_id);
  if (!row) return;
  const change = { hostname: due.hostname, is: active ? 'active' : 'pending' } as const;
  await announcePort(tx, endpoint, row, { type: 'port.changed', change, org_id, actor: 'system' });
}

/** Longer than the task's interval would hold up the next run. */
const LOOK_UP = { timeout: 2_000, tries: 2 };

/** Looks up the TXT records of custom hostnames that are due, by the machine's own name servers. */
export async function checkHostnamesByDns(db: Db, endpoint: HttpEndpoint): Promise<void> {
  const resolver = new Resolver(LOOK_UP);
  await checkHostnames(db, endpoint, (name) => resolver.resolveTxt(name));
}
