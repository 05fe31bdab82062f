/**
 * The route `POST …/vm/exec`: runs a command in the guest of a running VM, and answers when the command has ended.
 * Commands that outlive their caller are in execs/.
 */
import { Type } from 'typebox';
import { EXEC_INPUT_BYTES, type ExecResult as HostExecResult } from '../../protocol/host-calls.ts';
import { present } from '../../shared/assert.ts';
import { invalid } from '../../shared/errors.ts';
import type { HostId, InstanceId, VmId } from '../../shared/ids.ts';
import type { AppContext } from '../context.ts';
import type { Db, Tx } from '../db/pool.ts';
import type { HostCalls } from '../fleet/host-calls.ts';
import { disconnectSignal } from '../http/connections.ts';
import { NO_NUL_PATTERN } from '../http/errors.ts';
import { type App, mutate } from '../http/mutate.ts';
import { InstanceParams, named, nullable } from '../http/schemas.ts';
import type { Principal } from '../identity/principal.ts';
import { lockInstanceOf } from '../instances/change-instance.ts';
import { instanceId } from '../instances/routes.ts';
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
export interface CommandTarget {
  readonly instance_id: InstanceId;
  readonly vm_id: VmId;
  readonly host_id: HostId;
}

/** @throws AppError NOT_FOUND, CONFLICT, VM_NOT_RUNNING */
async function placeOfCommand(tx: Tx, principal: Principal, id: InstanceId): Promise<CommandTarget> {
  const row = await lockInstanceOf(tx, principal, id);
  ruleOrThrow(row, 'exec');
  await markUsed(tx, id);
  return commandTarget(row);
}

export function commandTarget(row: InstanceRow): CommandTarget {
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
function checkCommand({ command, stdin }: Pick<CommandRequest, 'command' | 'stdin'>): void {
  checkWords(command, {}, '/');
  if (Buffer.byteLength(stdin) > EXEC_INPUT_BYTES) throw invalid('stdin', 'must have at most 1 MiB in UTF-8');
}

/** Keeps the VM marked as used until the command has ended. @throws AppError VM_NOT_RUNNING, RATE_LIMITED, UNAVAILABLE */
async function runInGuest(
  { db, host_calls, mark_used_every_ms = MARK_USED_EVERY_MS }: CommandContext,
  { host_id, instance_id, vm_id }: CommandTarget,
  request: CommandRequest,
  signal: AbortSignal,
): Promise<HostExecResult> {
  const call = { kind: 'exec', instance_id, vm_id, ...request } as const;
  // A failure is ignored: the next mark, or the last one, follows soon.
  const stillInUse = () => markUsed(db, instance_id).catch(() => undefined);
  const timer = setInterval(() => void stillInUse(), mark_used_every_ms);
  try {
    return await host_calls.ask<HostExecResult>(host_id, call, request.timeout_ms + MARGIN_MS, signal);
  } finally {
    clearInterval(timer);
    await stillInUse();
  }
}

const DEFAULT_TIMEOUT_S = 60;
const MAX_TIMEOUT_S = 600;
/** A mebibyte of stdin, escaped. */
const BODY_LIMIT_BYTES = 4 * 1024 * 1024;
/** Linux accepts none that contains NUL. Its bytes are counted later. */
const ARGUMENT = { maxLength: WORD_BYTES, pattern: NO_NUL_PATTERN };
const MAX_OUTPUT = 1024 * 1024;
const AUDITED_CHARACTERS = 200;

const output = (example: string) =>
  Type.String({ maxLength: MAX_OUTPUT, description: 'As UTF-8; the first MiB', examples: [example] });

const ExecRequest = named('ExecRequest', {
  command: Type.Array(Type.String(ARGUMENT), {
    minItems: 1,
    maxItems: 256,
    description: `The program, by path or by name, and its arguments, each of at most ${WORD_BYTES} bytes in UTF-8; no shell interprets them`,
    examples: [['uname', '-r']],
  }),
  stdin: Type.Optional(
    Type.String({ maxLength: 1024 * 1024, description: 'At most 1 MiB in UTF-8', examples: [''] }),
  ),
  timeout_seconds: Type.Optional(
    Type.Integer({ minimum: 1, maximum: MAX_TIMEOUT_S, default: DEFAULT_TIMEOUT_S, examples: [60] }),
  ),
});
const ExecResult = named('ExecResult', {
  exit_code: nullable(
    Type.Integer({
      description: 'null: killed at its timeout; 128 + n: ended by signal n; 127: no such program',
      examples: [0],
    }),
  ),
  stdout: output('6.1.0-31-cloud-amd64\n'),
  stderr: output(''),
  truncated: Type.Boolean({ description: 'stdout or stderr was longer', examples: [false] }),
});

export function registerVmExec(app: App, context: AppContext): void {
  app.route({
    method: 'POST',
    url: '/v1/instances/:id/vm/exec',
    config: { access: 'vm:write', errors: ['CONFLICT', 'VM_NOT_RUNNING'] },
    bodyLimit: BODY_LIMIT_BYTES,
    schema: {
      operationId: 'execInVm',
      summary: 'Run a command in the guest as root, and wait until it ends',
      description:
        'The guest agent runs the command in `/`, in a new session. After `timeout_seconds` it kills the command and its session; the answer then has `exit_code` null and the output so far. The audit log keeps the program, but not its arguments. There is no Idempotency-Key, because no result is kept: a repeated request runs the command again.',
      tags: ['VM'],
      params: InstanceParams,
      body: ExecRequest,
      response: { 200: ExecResult },
    },
    handler: async (request, reply) => {
      const id = instanceId(request.params);
      const { command, stdin = '', timeout_seconds = DEFAULT_TIMEOUT_S } = request.body;
      checkCommand({ command, stdin });
      const mutation = { action: 'vm.exec' };
      const { body: place } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const found = await placeOfCommand(tx, principal, id);
        // Arguments often hold secrets. Half a character, given or cut, is not valid JSON.
        const program = (command[0] ?? '').slice(0, AUDITED_CHARACTERS).toWellFormed();
        return { status: 200, body: found, target: id, data: { vm_id: found.vm_id, program } };
      });
      const wanted = { command, stdin, timeout_ms: timeout_seconds * 1000 };
      const { db, host_calls, heartbeat_ms: mark_used_every_ms } = context;
      return runInGuest({ db, host_calls, mark_used_every_ms }, place, wanted, disconnectSignal(reply));
    },
  });
}
