/** Implements E2B's service `process.Process`: its commands and terminals are execs of Berth. */
import { createHash } from 'node:crypto';
import { BerthError, type ExecHandle, type VmHandle } from '../../../client/src/berth.ts';
import { Failure } from './failures.ts';
import { guestPath, type Labels } from './sandbox.ts';

interface Selector {
  readonly process?: { readonly pid?: number };
}
interface TerminalSize {
  readonly size?: { readonly cols?: number; readonly rows?: number };
}
export interface StartRequest {
  readonly process?: {
    readonly cmd?: string;
    readonly args?: readonly string[];
    readonly envs?: Labels;
    readonly cwd?: string;
  };
  readonly pty?: TerminalSize;
  readonly stdin?: boolean;
}
export interface Caller {
  readonly user: string;
  readonly timeout_ms: number | null;
  readonly gone: AbortSignal;
}

export const KEEPALIVE = { event: { keepalive: {} } };
const DEFAULT_SIZE = { cols: 80, rows: 24 };
const SIGNALS = { SIGNAL_SIGKILL: 'SIGKILL', SIGNAL_SIGTERM: 'SIGTERM' } as const;

/**
 * E2B knows a command by a number; it is made from the exec's id, so that nothing must be kept. It is not the process's number
 * in the guest. Among the at most 132 execs of an instance, two alike are less likely than one in 100,000.
 */
export function pidOf(exec_id: string): number {
  return createHash('sha256').update(exec_id).digest().readUInt32BE() & 0x7fff_ffff || 1;
}

export async function* startProcess(vm: VmHandle, request: StartRequest, caller: Caller) {
  const { cmd = '', args = [], envs = {}, cwd = '' } = request.process ?? {};
  const handle = await vm.startExec([cmd, ...args], {
    env: envs,
    cwd: guestPath(caller.user, cwd),
    user: caller.user,
    stdin: request.stdin === true,
    ...(request.pty ? { tty: sizeOf(request.pty) } : {}),
    // The package gives up at its timeout, and E2B then ends the command.
    timeout_seconds: caller.timeout_ms === null ? null : Math.max(1, Math.ceil(caller.timeout_ms / 1_000)),
    signal: caller.gone,
  });
  yield* eventsOf(handle, 0, request.pty !== undefined, caller.gone);
}

/** From now on: what it has written before is not repeated, except the last second, by which Berth's count may be late. */
export async function* connectProcess(vm: VmHandle, request: Selector, { gone }: Caller) {
  const handle = await running(vm, request);
  const { output_bytes } = await handle.get();
  const { command } = handle.exec;
  // E2B's terminals are all started so; nothing else says that an exec has one.
  const has_terminal = command.join(' ') === '/bin/bash -i -l';
  yield* eventsOf(handle, output_bytes, has_terminal, gone);
}

async function* eventsOf(handle: ExecHandle, offset: number, has_terminal: boolean, signal: AbortSignal) {
  yield { event: { start: { pid: pidOf(handle.id) } } };
  for await (const { stream, data } of handle.output({ offset, signal })) {
    const name = has_terminal ? 'pty' : stream;
    yield { event: { data: { [name]: Buffer.from(data).toString('base64') } } };
  }
  yield { event: { end: endOfExec(handle.exec) } };
}

export function endOfExec(exec: ExecHandle['exec']) {
  if (exec.state === 'lost')
    throw new Failure(
      'unavailable',
      exec.lost_with === 'supervisor'
        ? 'Something in the sandbox ended the process that runs commands there. The sandbox did not restart.'
        : 'The sandbox has stopped or restarted, and the command ended with it.',
    );
  if (exec.timed_out) throw new Failure('deadline_exceeded', 'The command was killed at its timeout.');
  const exited = exec.exit_code !== null;
  const status = exited ? `exit status ${exec.exit_code}` : `signal: ${exec.signal}`;
  const error = exec.exit_code === 0 ? {} : { error: status };
  return { exitCode: exec.exit_code ?? -1, exited, status, ...error };
}

export async function listProcesses(vm: VmHandle) {
  const processes = [];
  for await (const { id, state, command } of vm.execs()) {
    const [cmd, ...args] = command;
    if (state === 'running') processes.push({ pid: pidOf(id), config: { cmd, args, envs: {} } });
  }
  return { processes };
}

export async function sendSignal(vm: VmHandle, request: Selector & { readonly signal?: string | number }) {
  const asked =
    request.signal === 9 ? 'SIGNAL_SIGKILL' : request.signal === 15 ? 'SIGNAL_SIGTERM' : request.signal;
  const signal = SIGNALS[asked as keyof typeof SIGNALS];
  if (signal === undefined) throw new Failure('invalid_argument', `There is no signal ${asked}.`);
  const handle = await running(vm, request);
  await handle.signal(signal).catch(endedMeanwhile);
  return {};
}

export async function sendInput(
  vm: VmHandle,
  request: Selector & { readonly input?: { readonly stdin?: string; readonly pty?: string } },
) {
  const text = request.input?.stdin ?? request.input?.pty ?? '';
  const handle = await running(vm, request);
  await handle.write(new Uint8Array(Buffer.from(text, 'base64'))).catch(endedMeanwhile);
  return {};
}

export async function closeInput(vm: VmHandle, request: Selector) {
  const handle = await running(vm, request);
  await handle.closeInput().catch(endedMeanwhile);
  return {};
}

export async function resizeTerminal(vm: VmHandle, request: Selector & { readonly pty?: TerminalSize }) {
  const { columns, rows } = sizeOf(request.pty ?? {});
  const handle = await running(vm, request);
  await handle.resize(columns, rows).catch(endedMeanwhile);
  return {};
}

function sizeOf({ size }: TerminalSize) {
  return { columns: size?.cols ?? DEFAULT_SIZE.cols, rows: size?.rows ?? DEFAULT_SIZE.rows };
}

/** @throws Failure not_found unless it runs */
async function running(vm: VmHandle, { process }: Selector): Promise<ExecHandle> {
  for await (const { id, state } of vm.execs())
    if (state === 'running' && pidOf(id) === process?.pid) return vm.attachExec(id);
  throw new Failure('not_found', `No command with pid ${process?.pid} is running.`);
}

function endedMeanwhile(error: unknown): never {
  if (error instanceof BerthError && error.code === 'CONFLICT') throw new Failure('not_found', error.message);
  throw error;
}
