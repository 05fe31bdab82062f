/**
 * Executes the calls about execs, commands and files of a guest:
 * - an exec is started, signalled, resized, given input, and its output is streamed to readers;
 * - a command runs to its end, and the answer has its whole output;
 * - a file task is joined to a stream to the control plane.
 */

import type { Duplex } from 'node:stream';
import type { ExecControlResult, ExecStartResult } from '../../protocol/exec-types.ts';
import { decodePath } from '../../protocol/file-stream.ts';
import {
  type CallFailure,
  EXEC_OUTPUT_BYTES,
  type ExecResult,
  type HostCall,
} from '../../protocol/host-calls.ts';
import { joinStreams } from '../../shared/streams.ts';
import { untrustedText } from '../../shared/untrusted-text.ts';
import type { HostExec } from '../execs/exec.ts';
import { TO_GUEST } from '../execs/exec-channel.ts';
import { GuestTask } from '../execs/guest-task.ts';
import { type HostExecs, serveReader } from '../execs/host-execs.ts';
import { ExecsUnavailableError, type VmExecs } from '../execs/vm-execs.ts';
import { runUserCommand } from '../guest/user-command.ts';
import type { Machine } from '../vm/machine.ts';

/** Why a call failed, with a message for its caller. */
export class CallError extends Error {
  override name = 'CallError';
  readonly code: CallFailure['code'];

  constructor(code: CallFailure['code'], message: string) {
    super(message);
    this.code = code;
  }
}

type CallOf<K extends HostCall['kind']> = Extract<HostCall, { kind: K }>;

/** @throws CallError not_running, guest_silent, busy; the guest agent's errors */
export async function serveExecStart(
  execs: HostExecs,
  machine: Machine,
  call: CallOf<'exec_start'>,
): Promise<ExecStartResult> {
  if (machine.view === 'off') throw new CallError('not_running', 'The VM is no longer running.');
  if (machine.view === 'booting')
    throw new CallError('guest_silent', 'The guest has just rebooted, or its host was started again.');
  const vm = execs.of(call.instance_id);
  if (!vm) throw new CallError('not_running', 'The VM is no longer running.');
  const refusal = await vm.start(machine, call).catch((error: unknown) => {
    if (!(error instanceof ExecsUnavailableError)) throw error;
    throw new CallError('guest_silent', "The guest's exec supervisor does not answer.");
  });
  if (refusal === null) return { refused: null };
  const issue = untrustedText(refusal.issue);
  const { field } = refusal;
  if (field !== 'cwd' && field !== 'user')
    throw new CallError('busy', `The guest could not start it: ${issue}`);
  return { refused: { field, issue } };
}

/** @throws CallError gone, guest_silent */
export async function serveExecControl(
  execs: HostExecs,
  { instance_id, exec_id, action }: CallOf<'exec_control'>,
  signal: AbortSignal,
): Promise<ExecControlResult> {
  const { vm, exec } = find(execs, { instance_id, exec_id });
  if (exec.end !== null) return { outcome: 'ended' };
  if (!vm.connected)
    throw new CallError('guest_silent', "The guest's exec supervisor does not answer. Try again shortly.");
  const send = vm.sendTo(exec);
  switch (action.kind) {
    case 'signal':
      send(TO_GUEST.signal, Buffer.of(action.signal));
      return { outcome: 'done' };
    case 'resize': {
      const size = Buffer.alloc(4);
      size.writeUInt16BE(action.columns);
      size.writeUInt16BE(action.rows, 2);
      send(TO_GUEST.resize, size);
      return { outcome: 'done' };
    }
    case 'input': {
      const data = Buffer.from(action.data, 'base64');
      exec.noteRequestedInput();
      if (await exec.write(send, data, action.eof, signal)) return { outcome: 'done' };
      return { outcome: exec.end === null ? 'no_input' : 'ended' };
    }
  }
}

/** Serves the reader in the background once its stream is open. @throws CallError gone */
export async function readExec(
  execs: HostExecs,
  { instance_id, exec_id, offset, follow, attached, input }: CallOf<'exec_stream'>,
  openStream: () => Promise<Duplex>,
): Promise<void> {
  const { vm, exec } = find(execs, { instance_id, exec_id });
  const stream = await openStream();
  void serveReader(stream, { instance_id, exec, send: vm.sendTo(exec), offset, follow, attached, input });
}

function find(
  execs: HostExecs,
  { instance_id, exec_id }: Pick<CallOf<'exec_control'>, 'instance_id' | 'exec_id'>,
): { vm: VmExecs; exec: HostExec } {
  const vm = execs.of(instance_id);
  const exec = vm?.find(exec_id);
  if (vm && exec) return { vm, exec };
  throw new CallError('gone', 'This host does not have the exec, or its output, any more.');
}

const COMMANDS_A_VM = 8;
const SIGNALLED = 128;

const running = new WeakMap<Machine, number>();

/**
 * Runs a caller's command in the guest. Bounded per VM: a flush's freeze shares the agent's one channel.
 * @throws CallError not_running, guest_silent, busy; the guest agent's errors
 */
export async function serveCommand(
  machine: Machine,
  { command, stdin, timeout_ms }: Extract<HostCall, { kind: 'exec' }>,
  signal: AbortSignal,
): Promise<ExecResult> {
  if (machine.view === 'off') throw new CallError('not_running', 'The VM is no longer running.');
  // An adopted guest runs, and has not answered this agent yet.
  if (machine.view === 'booting') {
    throw new CallError('guest_silent', 'The guest has just rebooted, or its host was started again.');
  }
  const others = running.get(machine) ?? 0;
  if (others >= COMMANDS_A_VM) {
    throw new CallError('busy', `${COMMANDS_A_VM} commands run in this VM already; wait for one to end.`);
  }
  running.set(machine, others + 1);
  const bootEnded = machine.bootEnded(machine.resets);
  try {
    const [path = '', ...args] = command;
    const result = await runUserCommand(machine.agent, {
      path,
      args,
      input: stdin,
      timeout_ms,
      max_output_bytes: EXEC_OUTPUT_BYTES,
      signal: AbortSignal.any([signal, bootEnded]),
    });
    return {
      exit_code: result.timed_out ? null : (result.exit_code ?? SIGNALLED + (result.signal ?? 0)),
      stdout: result.stdout.toString('utf8'),
      stderr: result.stderr.toString('utf8'),
      truncated: result.truncated,
    };
  } catch (error) {
    if (bootEnded.aborted)
      throw new CallError('not_running', 'The VM rebooted or ended while the command ran.');
    if (signal.aborted) throw new CallError('failed', 'The host is restarting; the command was ended.');
    throw error;
  } finally {
    running.set(machine, (running.get(machine) ?? 1) - 1);
  }
}

type FileCall = Extract<HostCall, { kind: 'file' }>;

/**
 * Calls about the guest's files: each is a task of the guest's supervisor, joined to a stream to the control plane.
 * Serves the call in the background once its stream is open. @throws CallError not_running, guest_silent, busy; the guest agent's errors
 */
export async function serveFiles(
  execs: HostExecs,
  machine: Machine,
  { instance_id, action }: FileCall,
  openStream: () => Promise<Duplex>,
): Promise<void> {
  if (machine.view === 'off') throw new CallError('not_running', 'The VM is no longer running.');
  if (machine.view === 'booting')
    throw new CallError('guest_silent', 'The guest has just rebooted, or its host was started again.');
  const vm = execs.of(instance_id);
  if (!vm) throw new CallError('not_running', 'The VM is no longer running.');
  const task = await vm.startTask(machine, wordsOf(action)).catch((error: unknown) => {
    if (!(error instanceof ExecsUnavailableError)) throw error;
    throw new CallError('guest_silent', "The guest's exec supervisor does not answer. Try again shortly.");
  });
  if (!(task instanceof GuestTask))
    throw new CallError('busy', `The guest could not start it: ${untrustedText(task.issue)}`);
  task.on('error', () => task.destroy());
  try {
    joinStreams(await openStream(), task);
  } catch (error) {
    task.destroy();
    throw error;
  }
}

/** As the verbs of file-tasks.pl take them. */
export function wordsOf(action: FileCall['action']): Buffer[] {
  const words = [Buffer.from(action.verb), bytesOf(action.path)];
  switch (action.verb) {
    case 'read':
      return words;
    case 'write':
    case 'directory':
      return [...words, Buffer.from(action.mode ?? ''), Buffer.from(action.user ?? '')];
    case 'list':
      return [...words, bytesOf(action.after ?? ''), Buffer.from(String(action.count))];
    case 'remove':
      return [...words, Buffer.from(action.recursive ? '1' : '')];
    case 'move':
      return [...words, bytesOf(action.to)];
  }
}

/** @throws CallError failed */
function bytesOf(path: string): Buffer {
  const bytes = decodePath(path);
  if (bytes === null || bytes.includes(0)) throw new CallError('failed', 'The path is malformed.');
  return bytes;
}
