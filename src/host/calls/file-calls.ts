/** Calls about the guest's files: each is a task of the guest's supervisor, joined to a stream to the control plane. */
import type { Duplex } from 'node:stream';
import { decodePath } from '../../protocol/file-stream.ts';
import type { HostCall } from '../../protocol/host-calls.ts';
import { joinStreams } from '../../shared/streams.ts';
import { untrustedText } from '../../shared/untrusted-text.ts';
import { GuestTask } from '../execs/guest-task.ts';
import type { HostExecs } from '../execs/host-execs.ts';
import { ExecsUnavailableError } from '../execs/vm-execs.ts';
import type { Machine } from '../vm/machine.ts';
import { CallError } from './call-error.ts';

type FileCall = Extract<HostCall, { kind: 'file' }>;

/** Serves the call in the background once its stream is open. @throws CallError not_running, guest_silent, busy; the guest agent's errors */
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
