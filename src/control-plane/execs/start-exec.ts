/**
 * Starts an exec: a row first, then the call to the host, which starts it once, however often it is asked. So a repeated request with
 * the same Idempotency-Key asks again after a lost answer, and never runs the command twice.
 */
import { type ExecStartResult, RUNNING_MAX } from '../../protocol/exec-types.ts';
import { AppError, invalid, RETRY_LATER_S } from '../../shared/errors.ts';
import { type ExecId, type InstanceId, newId, type VmId } from '../../shared/ids.ts';
import type { Db, Tx } from '../db/pool.ts';
import { type HostCalls, NotBegunError } from '../fleet/host-calls.ts';
import type { Principal } from '../identity/principal.ts';
import { lockInstanceOf } from '../instances/change-instance.ts';
import { placeOf } from '../vms/exec-command.ts';
import { ruleOrThrow } from '../vms/request-change.ts';
import { markUsed } from '../vms/store.ts';
import {
  countRunning,
  deleteOld,
  deleteStarting,
  type ExecRow,
  findExec,
  insertExec,
  markStarted,
} from './store.ts';

const START_WITHIN_MS = 60_000;

export interface ExecRequest {
  readonly command: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  readonly cwd: string;
  readonly user: string;
  readonly tty: { readonly columns: number; readonly rows: number } | null;
  readonly stdin: boolean;
  readonly timeout_seconds: number | null;
}

/** @throws AppError NOT_FOUND, CONFLICT, VM_NOT_RUNNING, QUOTA_EXCEEDED */
export async function beginExec(
  tx: Tx,
  principal: Principal,
  instance_id: InstanceId,
  { command, tty, stdin }: Pick<ExecRequest, 'command' | 'tty' | 'stdin'>,
): Promise<BegunExec> {
  const instance = await lockInstanceOf(tx, principal, instance_id);
  ruleOrThrow(instance, 'exec');
  await deleteOld(tx, instance_id);
  const used = await countRunning(tx, instance_id);
  if (used >= RUNNING_MAX) {
    throw new AppError('QUOTA_EXCEEDED', {
      message: `At most ${RUNNING_MAX} execs run at once in a VM. Wait for one to end, or end one.`,
      details: [{ field: 'execs', issue: `quota ${RUNNING_MAX}, used ${used}, wanted 1` }],
    });
  }
  await markUsed(tx, instance_id);
  const id = newId('exec');
  const { host_id, vm_id } = placeOf(instance);
  await insertExec(tx, { id, instance_id, host_id, command: [...command], tty: tty !== null, stdin });
  return { id, instance_id, vm_id };
}

/** What the Idempotency-Key keeps of a start. */
export interface BegunExec {
  readonly id: ExecId;
  readonly instance_id: InstanceId;
  readonly vm_id: VmId;
}

/** Asks the host, unless it has answered before. @throws AppError INVALID_REQUEST, VM_NOT_RUNNING, RATE_LIMITED, UNAVAILABLE, NOT_FOUND */
export async function startExec(
  { db, host_calls }: { readonly db: Db; readonly host_calls: HostCalls },
  { id, instance_id, vm_id }: BegunExec,
  request: ExecRequest,
  signal: AbortSignal,
): Promise<ExecRow> {
  const row = await existing(db, instance_id, id);
  if (row.state !== 'starting') return row;
  const { env, timeout_seconds, ...words } = request;
  const call = {
    ...({ kind: 'exec_start', instance_id, vm_id, exec_id: id } as const),
    ...words,
    environment: Object.entries(env).map(([name, value]) => `${name}=${value}`),
    timeout_ms: timeout_seconds === null ? null : timeout_seconds * 1000,
  } as const;
  try {
    const { refused } = await host_calls.ask<ExecStartResult>(row.host_id, call, START_WITHIN_MS, signal);
    if (refused) throw invalid(refused.field, refused.issue);
  } catch (error) {
    if (!(error instanceof AppError) || error instanceof NotBegunError) throw error;
    if (error.code === 'UNAVAILABLE') throw mayRun(error, id);
    await deleteStarting(db, id);
    throw error;
  }
  await markStarted(db, id);
  return existing(db, instance_id, id);
}

/** Without an answer: the guest, or its host, may take up the start whenever it goes on. */
function mayRun({ message, cause }: AppError, id: ExecId): AppError {
  return new AppError('UNAVAILABLE', {
    message: `${message} The command may run all the same, now or later, as ${id}: it is in the list of execs once it runs. Repeat the request with the same Idempotency-Key to ask again; it never runs twice.`,
    details: [{ field: 'exec_id', issue: id }],
    retry_after_seconds: RETRY_LATER_S,
    cause,
  });
}

async function existing(db: Db, instance_id: InstanceId, id: ExecId): Promise<ExecRow> {
  const row = await findExec(db, instance_id, id);
  if (!row) throw new AppError('NOT_FOUND');
  return row;
}
