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
  /** A stream to the VM's sshd. */
  | { readonly kind: 'ssh'; readonly instance_id: InstanceId; readonly vm_id: VmId }
  | { readonly kind: 'metrics'; readonly instance_id: InstanceId; readonly vm_id: VmId }
  /** The newest sample of every VM of the host. */
  | { readonly kind: 'usage' };

/** Why there is no result: the machine is not there, its guest does not answer, or all else. */
export const CALL_FAILURES = ['not_running', 'guest_silent', 'busy', 'failed'] as const;
export type CallFailure = Reason<(typeof CALL_FAILURES)[number]>;

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

/** Where the ingress asks for a way to a VM on another host, by the same protocol. */
export function tunnelPath(instance_id: InstanceId): string {
  return `/internal/v1/tunnels/${instance_id}`;
}

/** Counters since the VM's process began, and levels. null: the guest was not asked, or did not answer. */
export interface VmSample {
  readonly at: string;
  /** Of the whole process: the virtual cpus, and the emulation of disk and network. */
  readonly cpu_seconds: number;
  readonly memory: {
    /** What the process takes of the host. */
    readonly host_bytes: number;
    /** As the guest sees it, without what it can give up at once. */
    readonly used_bytes: number | null;
    readonly total_bytes: number | null;
  };
  readonly disk: {
    readonly read_bytes: number;
    readonly written_bytes: number;
    readonly read_operations: number;
    readonly write_operations: number;
  };
  readonly network: { readonly received_bytes: number | null; readonly sent_bytes: number | null };
}

export interface MetricsResult {
  readonly now: VmSample;
  readonly interval_seconds: number;
  /** Oldest first, an hour at most. */
  readonly samples: readonly VmSample[];
}

export interface UsageResult {
  readonly vms: readonly { readonly instance_id: InstanceId; readonly sample: VmSample }[];
}
