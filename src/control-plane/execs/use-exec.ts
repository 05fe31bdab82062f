/**
 * Starts execs, sends them signals, terminal sizes and input, opens their output, and records what hosts report of
 * them.
 *
 * A start is idempotent. The exec's row with its id comes first, then the call to the host, which starts an exec of
 * this id only once. So a request that is repeated with its Idempotency-Key finds the same exec.
 */
import type { Duplex } from 'node:stream';
import {
  type ExecControlResult,
  type ExecStartResult,
  type ReportedExec,
  RUNNING_MAX,
} from '../../protocol/exec-types.ts';
import type { HostCall } from '../../protocol/host-calls.ts';
import { rfc3339 } from '../../shared/clock.ts';
import { AppError, invalid, RETRY_LATER_S } from '../../shared/errors.ts';
import { type ExecId, type HostId, type InstanceId, newId, type OrgId, type VmId } from '../../shared/ids.ts';
import { signalName } from '../../shared/signal-names.ts';
import type { ExecState } from '../db/column-types.ts';
import { notify } from '../db/notify.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import { type HostCalls, NotBegunError } from '../fleet/host-calls.ts';
import { type KnownCredential, reauthenticate } from '../identity/authenticate.ts';
import type { Principal } from '../identity/principal.ts';
import { lockInstanceOf } from '../instances/change-instance.ts';
import { findInstance } from '../instances/store.ts';
import { commandTarget } from '../vms/exec-routes.ts';
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
  recordSeen,
} from './store.ts';

/** Longer than a host that stands still is waited for, which gives a better reason. */
const CONTROL_WITHIN_MS = 30_000;
/** A guest that does not read its input holds up the request. */
const INPUT_WITHIN_MS = 60_000;
const OPEN_WITHIN_MS = 30_000;

type Action = Extract<HostCall, { kind: 'exec_control' }>['action'];
type Context = { readonly db: Db; readonly host_calls: HostCalls };

export interface ExecRef {
  readonly instance_id: InstanceId;
  readonly id: ExecId;
}

/** @throws AppError NOT_FOUND */
export async function execOf(tx: Tx, org_id: OrgId, { instance_id, id }: ExecRef): Promise<ExecRow> {
  const row = await findExec(tx, instance_id, id);
  if (row?.org_id !== org_id || row.state === 'starting') throw new AppError('NOT_FOUND');
  return row;
}

/** One that runs, in a VM that runs. @throws AppError NOT_FOUND, CONFLICT, VM_NOT_RUNNING */
export async function runningExec(tx: Tx, principal: Principal, place: ExecRef): Promise<ExecRow> {
  const row = await execOf(tx, principal.org_id, place);
  if (row.state !== 'running') throw hasEnded();
  const instance = await findInstance(tx, principal.org_id, place.instance_id);
  if (!instance) throw new AppError('NOT_FOUND');
  ruleOrThrow(instance, 'exec');
  await markUsed(tx, place.instance_id);
  return row;
}

/** @throws AppError CONFLICT, VM_NOT_RUNNING, UNAVAILABLE */
export async function controlExec(
  { host_calls }: Context,
  { id: exec_id, instance_id, host_id }: ExecRow,
  action: Action,
  signal: AbortSignal,
): Promise<void> {
  const call = { kind: 'exec_control', instance_id, exec_id, action } as const;
  const within_ms = action.kind === 'input' ? INPUT_WITHIN_MS : CONTROL_WITHIN_MS;
  const { outcome } = await host_calls.ask<ExecControlResult>(host_id, call, within_ms, signal);
  if (outcome === 'ended') throw hasEnded();
  if (outcome === 'no_input') throw noInput();
}

export function noInput(): AppError {
  const message = 'Its input is closed. An exec with input is created with "stdin": true.';
  return new AppError('CONFLICT', { message });
}

function hasEnded(): AppError {
  return new AppError('CONFLICT', { message: 'The exec has ended.' });
}

export interface OutputWanted {
  readonly offset: number;
  readonly follow: boolean;
  /** The exec waits for the reader. */
  readonly attached: boolean;
  /** It may send input. */
  readonly input: boolean;
}

/** The stream of the host; it ends when `signal` aborts. @throws AppError CONFLICT, UNAVAILABLE */
export async function openOutput(
  { host_calls }: Context,
  { id: exec_id, instance_id, host_id }: ExecRow,
  wanted: OutputWanted,
  signal: AbortSignal,
): Promise<Duplex> {
  const call = { kind: 'exec_stream', instance_id, exec_id, ...wanted } as const;
  const line = await host_calls.open(host_id, call, OPEN_WITHIN_MS, signal);
  line.on('error', () => line.destroy());
  signal.addEventListener('abort', () => line.destroy(), { once: true });
  if (signal.aborted) line.destroy();
  return line;
}

/** What the exec's host says of it, in a report or at the end of a stream. False: it has no such running exec. */
export async function recordExec(db: Db, host_id: HostId, report: ReportedExec): Promise<boolean> {
  const { exec_id: id, instance_id, output_bytes, end, waits = false } = report;
  return transaction(db, async (tx) => {
    const known = await recordSeen(tx, { id, instance_id, host_id, output_bytes, end, waits });
    if (!known) return false;
    // What waits for input was in use until now, or goes on printing. Anything else is in use by itself.
    if (end === null && !(waits && known.stdin)) return true;
    await markUsed(tx, instance_id);
    if (end !== null) await notify(tx, 'exec', id);
    return true;
  });
}

export interface ExecHolder {
  readonly credential: KnownCredential;
  readonly org_id: OrgId;
  readonly instance_id: InstanceId;
  readonly exec_id: ExecId;
}

/** Reauthorises the holder of a stream; called periodically. @throws AppError UNAUTHENTICATED, FORBIDDEN, NOT_FOUND */
export async function execForHolder(
  db: Db,
  { credential, org_id, instance_id, exec_id }: ExecHolder,
  ip: string,
): Promise<{ readonly row: ExecRow; readonly may_write: boolean }> {
  const { scopes } = await reauthenticate(db, credential, org_id, ip);
  if (!scopes.has('vm:read')) throw new AppError('FORBIDDEN');
  const row = await execOf(db, org_id, { instance_id, id: exec_id });
  if (row.state === 'running') await markUsed(db, instance_id);
  return { row, may_write: scopes.has('vm:write') };
}

export function execView(row: ExecRow) {
  return {
    id: row.id,
    instance_id: row.instance_id,
    command: [...row.command],
    state: (row.state === 'starting' ? 'running' : row.state) as ExecState,
    exit_code: row.exit_code,
    signal: row.signal === null ? null : signalName(row.signal),
    timed_out: row.timed_out,
    lost_with: row.lost_with,
    started_at: rfc3339(row.started_at),
    ended_at: row.ended_at && rfc3339(row.ended_at),
    output_bytes: row.output_bytes,
  };
}

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

/** The first step of a start: inserts the row. @throws AppError NOT_FOUND, CONFLICT, VM_NOT_RUNNING, QUOTA_EXCEEDED */
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
  const { host_id, vm_id } = commandTarget(instance);
  await insertExec(tx, { id, instance_id, host_id, command: [...command], tty: tty !== null, stdin });
  return { id, instance_id, vm_id };
}

/** What the Idempotency-Key keeps of a start. */
export interface BegunExec {
  readonly id: ExecId;
  readonly instance_id: InstanceId;
  readonly vm_id: VmId;
}

/**
 * The second step of a start: asks the host, unless it has answered before. It starts the exec once, however often it is
 * asked. @throws AppError INVALID_REQUEST, VM_NOT_RUNNING, RATE_LIMITED, UNAVAILABLE, NOT_FOUND
 */
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
