/** The words of a start, as the supervisor reads them. */
import type { HostCall } from '../../protocol/host-calls.ts';

export type StartCall = Extract<HostCall, { kind: 'exec_start' }>;

export function startWords(call: StartCall): Buffer {
  const { user, cwd, tty, stdin, timeout_ms, command, environment } = call;
  const words = [
    ...[user, cwd, String(tty?.columns ?? 0), String(tty?.rows ?? 0), stdin ? '1' : ''],
    ...[String(timeout_ms ?? 0), String(command.length), ...command, ...environment],
  ];
  return Buffer.from(words.join('\0'));
}

/** None contains NUL. */
export function joinWords(words: readonly Uint8Array[]): Buffer {
  return Buffer.concat(words.flatMap((word, index) => (index === 0 ? [word] : [Buffer.of(0), word])));
}
