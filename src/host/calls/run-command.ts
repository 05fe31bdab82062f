/** Runs a caller's command in the guest. Bounded per VM: a flush's freeze shares the agent's one channel. */
import { EXEC_OUTPUT_BYTES, type ExecResult, type HostCall } from '../../protocol/host-calls.ts';
import { runUserCommand } from '../guest/user-command.ts';
import type { Machine } from '../machine/machine.ts';
import { CallError } from './call-error.ts';

const COMMANDS_A_VM = 8;
const SIGNALLED = 128;

const running = new WeakMap<Machine, number>();

/** @throws CallError not_running, guest_silent, busy; the guest agent's errors */
export async function runCommand(
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
