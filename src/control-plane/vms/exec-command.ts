/** Runs a command in the guest of a running VM while the caller waits. */
import { EXEC_INPUT_BYTES, type ExecResult } from '../../protocol/host-calls.ts';
import { present } from '../../shared/assert.ts';
import { invalid } from '../../shared/errors.ts';
import type { HostId, InstanceId, VmId } from '../../shared/ids.ts';
import type { Db, Tx } from '../db/pool.ts';
import type { HostCalls } from '../fleet/host-calls.ts';
import type { Principal } from '../identity/principal.ts';
import { lockInstanceOf } from '../instances/change-instance.ts';
import type { InstanceRow } from '../instances/store.ts';
import { ruleOrThrow } from './request-change.ts';
import { markUsed } from './store.ts';

/** On top of the command's own timeout: for its start, its end, and the network. */
const MARGIN_MS = 15_000;
/** Well within the shortest idle timeout, which is a minute. */
export const MARK_USED_EVERY_MS = 15_000;

export interface CommandRequest {
  readonly command: readonly string[];
  readonly stdin: string;
  readonly timeout_ms: number;
}

export interface CommandContext {
  readonly db: Db;
  readonly host_calls: HostCalls;
  readonly mark_used_every_ms?: number | undefined;
}

/** Where a command runs. */
export interface CommandPlace {
  readonly instance_id: InstanceId;
  readonly vm_id: VmId;
  readonly host_id: HostId;
}

/** @throws AppError NOT_FOUND, CONFLICT, VM_NOT_RUNNING */
export async function placeOfCommand(tx: Tx, principal: Principal, id: InstanceId): Promise<CommandPlace> {
  const row = await lockInstanceOf(tx, principal, id);
  ruleOrThrow(row, 'exec');
  await markUsed(tx, id);
  return placeOf(row);
}

export function placeOf(row: InstanceRow): CommandPlace {
  return {
    instance_id: row.id,
    vm_id: present(row.vm_id as VmId | null, 'vm id'),
    host_id: present(row.host_id as HostId | null, 'host of a VM'),
  };
}

/** In UTF-8. Linux accepts no longer argument and no longer variable (MAX_ARG_STRLEN), and no longer path. */
export const WORD_BYTES = 131_071;
export const CWD_BYTES = 4_095;

/** @throws AppError INVALID_REQUEST */
export function checkWords(
  command: readonly string[],
  env: Readonly<Record<string, string>>,
  cwd: string,
): void {
  if (command[0] === '') throw invalid('command', 'the program must have a name');
  for (const [at, word] of command.entries()) requireBytes(`command.${at}`, word, WORD_BYTES);
  for (const [name, value] of Object.entries(env))
    requireBytes(`env.${name}`, `${name}=${value}`, WORD_BYTES);
  requireBytes('cwd', cwd, CWD_BYTES);
}

function requireBytes(field: string, text: string, most: number): void {
  const bytes = Buffer.byteLength(text);
  if (bytes > most) throw invalid(field, `must have at most ${most} bytes in UTF-8, and has ${bytes}`);
}

/** @throws AppError INVALID_REQUEST */
export function checkCommand({ command, stdin }: Pick<CommandRequest, 'command' | 'stdin'>): void {
  checkWords(command, {}, '/');
  if (Buffer.byteLength(stdin) > EXEC_INPUT_BYTES) throw invalid('stdin', 'must have at most 1 MiB in UTF-8');
}

/** Keeps the VM marked as used until the command has ended. @throws AppError VM_NOT_RUNNING, RATE_LIMITED, UNAVAILABLE */
export async function runInGuest(
  { db, host_calls, mark_used_every_ms = MARK_USED_EVERY_MS }: CommandContext,
  { host_id, instance_id, vm_id }: CommandPlace,
  request: CommandRequest,
  signal: AbortSignal,
): Promise<ExecResult> {
  const call = { kind: 'exec', instance_id, vm_id, ...request } as const;
  // A failure is ignored: the next mark, or the last one, follows soon.
  const stillInUse = () => markUsed(db, instance_id).catch(() => undefined);
  const timer = setInterval(() => void stillInUse(), mark_used_every_ms);
  try {
    return await host_calls.ask<ExecResult>(host_id, call, request.timeout_ms + MARGIN_MS, signal);
  } finally {
    clearInterval(timer);
    await stillInUse();
  }
}
