/** Sends signals, terminal sizes and input to running execs, and streams their output. */
import type { Duplex } from 'node:stream';
import type { ExecControlResult, ReportedExec } from '../../protocol/exec-types.ts';
import type { HostCall } from '../../protocol/host-calls.ts';
import { rfc3339 } from '../../shared/clock.ts';
import { AppError } from '../../shared/errors.ts';
import type { ExecId, HostId, InstanceId, OrgId } from '../../shared/ids.ts';
import { signalName } from '../../shared/signal-names.ts';
import type { ExecState } from '../db/exec-tables.ts';
import { notify } from '../db/notify.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import type { HostCalls } from '../fleet/host-calls.ts';
import { type KnownCredential, reauthenticate } from '../identity/authenticate.ts';
import type { Principal } from '../identity/principal.ts';
import { findInstance } from '../instances/store.ts';
import { ruleOrThrow } from '../vms/request-change.ts';
import { markUsed } from '../vms/store.ts';
import { type ExecRow, findExec, recordSeen } from './store.ts';

/** Longer than a host that stands still is waited for, which gives a better reason. */
const CONTROL_WITHIN_MS = 30_000;
/** A guest that does not read its input holds up the request. */
const INPUT_WITHIN_MS = 60_000;
const OPEN_WITHIN_MS = 30_000;

type Action = Extract<HostCall, { kind: 'exec_control' }>['action'];
type Context = { readonly db: Db; readonly host_calls: HostCalls };

export interface ExecPlace {
  readonly instance_id: InstanceId;
  readonly id: ExecId;
}

/** @throws AppError NOT_FOUND */
export async function execOf(tx: Tx, org_id: OrgId, { instance_id, id }: ExecPlace): Promise<ExecRow> {
  const row = await findExec(tx, instance_id, id);
  if (row?.org_id !== org_id || row.state === 'starting') throw new AppError('NOT_FOUND');
  return row;
}

/** One that runs, in a VM that runs. @throws AppError NOT_FOUND, CONFLICT, VM_NOT_RUNNING */
export async function runningExec(tx: Tx, principal: Principal, place: ExecPlace): Promise<ExecRow> {
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
