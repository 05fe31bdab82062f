/**
 * What an agent is asked while a caller waits for the answer: things that belong to this moment, and so are no part of
 * its assignments. The agent dials: it polls for calls, and answers each once; a console's answer is a stream.
 */
import type { InstanceId, VmId } from '../lib/ids.ts';
import type { Reason } from './types.ts';

export type HostCall =
  | {
      readonly kind: 'exec';
      readonly instance_id: InstanceId;
      readonly vm_id: VmId;
      readonly command: readonly string[];
      readonly stdin: string;
      readonly timeout_ms: number;
    }
  | { readonly kind: 'console_log'; readonly instance_id: InstanceId; readonly max_bytes: number }
  | { readonly kind: 'console'; readonly instance_id: InstanceId; readonly vm_id: VmId }
  | { readonly kind: 'metrics'; readonly instance_id: InstanceId; readonly vm_id: VmId };

/** Why there is no result: the machine is not there, its guest does not answer, or all else. */
export const CALL_FAILURES = ['not_running', 'guest_silent', 'busy', 'failed'] as const;
export type CallFailure = Reason & { readonly code: (typeof CALL_FAILURES)[number] };

export type CallAnswer =
  | { readonly result: unknown; readonly error?: never }
  | { readonly error: CallFailure; readonly result?: never };

export interface PendingCall {
  readonly id: string;
  readonly call: HostCall;
}
export interface CallsRequest {
  /** The agent has just started: what was handed to the one before will not be answered. */
  readonly fresh: boolean;
}
export interface CallsResponse {
  readonly calls: readonly PendingCall[];
}
export interface AnswerRequest {
  readonly id: string;
  readonly answer: CallAnswer;
}

/** Of each of a command's streams. */
export const EXEC_OUTPUT_BYTES = 1024 * 1024;
export const EXEC_INPUT_BYTES = 1024 * 1024;

export interface ExecResult {
  /** null: its time was over, and it was killed. As shells have it, 128 + n where signal n ended it. */
  readonly exit_code: number | null;
  readonly stdout: string;
  readonly stderr: string;
  readonly truncated: boolean;
}

export interface ConsoleLogResult {
  readonly text: string;
}

/** The protocol of the upgrade with which an agent answers `console`; the bytes are the serial line's. */
export const CONSOLE_PROTOCOL = 'berth-console';
export function consoleStreamPath(call_id: string): string {
  return `/internal/v1/calls/${call_id}/stream`;
}
