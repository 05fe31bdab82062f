/**
 * Defines the calls that a control plane makes to a host's agent while a caller of the API waits: commands, consoles,
 * metrics. The agent opens every connection: it polls for calls, and answers each once. It answers a call for a
 * console, SSH, an exec's output or a file with a stream.
 */
import { type TSchema, Type } from 'typebox';
import type { InstanceId as IdOfInstance } from '../shared/ids.ts';
import {
  EXEC_RESULTS,
  ExecControlCall,
  ExecControlResult,
  ExecStartCall,
  ExecStartResult,
  ExecStreamCall,
  FileCall,
} from './exec-types.ts';
import {
  anyText,
  Bytes,
  closed,
  GuestPortAddress,
  HostId,
  InstanceId,
  listOf,
  Milliseconds,
  named,
  nullable,
  type Of,
  oneOf,
  Port,
  Text,
  Time,
  TraceContext,
  Uuid,
  VmId,
  whole,
} from './schemas.ts';

/** Of each output stream of a command. */
export const EXEC_OUTPUT_BYTES = 1024 * 1024;
export const EXEC_INPUT_BYTES = 1024 * 1024;
/** The most calls in one poll. */
export const CALLS_MAX = 2_048;
const CONSOLE_LOG_MAX = 2 ** 22;
const SAMPLES_MAX = 1_000;
const USAGE_VMS_MAX = 20_000;

const OfVm = { instance_id: InstanceId, vm_id: VmId };

export const HostCall = Type.Union([
  closed({
    kind: Type.Literal('exec'),
    ...OfVm,
    command: listOf(anyText(EXEC_INPUT_BYTES), 4_096),
    stdin: anyText(EXEC_INPUT_BYTES),
    timeout_ms: Milliseconds,
  }),
  closed({
    kind: Type.Literal('console_log'),
    instance_id: InstanceId,
    max_bytes: whole(0, CONSOLE_LOG_MAX),
    /** In front of each line the time at which it arrived; absent: no. */
    timestamps: Type.Optional(Type.Boolean()),
  }),
  closed({ kind: Type.Literal('console'), ...OfVm }),
  /** A stream to the VM's sshd. */
  closed({ kind: Type.Literal('ssh'), ...OfVm }),
  /** A stream to a TCP port of the guest. */
  closed({ kind: Type.Literal('port'), ...OfVm, port: Port }),
  /** The address on the host that leads to a TCP port of the guest. */
  closed({ kind: Type.Literal('open_port'), ...OfVm, port: Port }),
  closed({ kind: Type.Literal('metrics'), ...OfVm }),
  /** The newest sample of every VM of the host. */
  closed({ kind: Type.Literal('usage') }),
  ExecStartCall,
  ExecControlCall,
  ExecStreamCall,
  FileCall,
]);
export type HostCall = Of<typeof HostCall>;

/** Why there is no result: the VM does not run, its guest is silent or busy, nothing listens at the port, it is no longer kept, or another failure. */
export const CallFailure = named('CallFailure', {
  code: oneOf(['not_running', 'guest_silent', 'busy', 'not_listening', 'gone', 'failed']),
  message: Text,
});
export type CallFailure = Of<typeof CallFailure>;

export const ExecResult = named('ExecResult', {
  /** Null: it was killed at its timeout. As in a shell, 128 + n if signal n ended it. */
  exit_code: nullable(whole(-(2 ** 31), 2 ** 32 - 1)),
  stdout: anyText(EXEC_OUTPUT_BYTES),
  stderr: anyText(EXEC_OUTPUT_BYTES),
  truncated: Type.Boolean(),
});
export type ExecResult = Of<typeof ExecResult>;

export const ConsoleLogResult = named('ConsoleLogResult', { text: anyText(CONSOLE_LOG_MAX) });
export type ConsoleLogResult = Of<typeof ConsoleLogResult>;

/** Counters since QEMU's start, and levels. Null: the guest gave no answer. */
export const VmSample = named('VmSample', {
  at: Time,
  /** Of the QEMU process: virtual cpus and device emulation. */
  cpu_seconds: Type.Number({ minimum: 0, maximum: 2 ** 50 }),
  memory: closed({
    /** The memory of the QEMU process on the host. */
    host_bytes: Bytes,
    /** Inside the guest, without reclaimable memory. */
    used_bytes: nullable(Bytes),
    total_bytes: nullable(Bytes),
  }),
  disk: closed({
    read_bytes: whole(0, Number.MAX_SAFE_INTEGER),
    written_bytes: whole(0, Number.MAX_SAFE_INTEGER),
    read_operations: whole(0, Number.MAX_SAFE_INTEGER),
    write_operations: whole(0, Number.MAX_SAFE_INTEGER),
  }),
  network: closed({
    received_bytes: nullable(whole(0, Number.MAX_SAFE_INTEGER)),
    sent_bytes: nullable(whole(0, Number.MAX_SAFE_INTEGER)),
  }),
});
export type VmSample = Of<typeof VmSample>;

export const MetricsResult = named('MetricsResult', {
  now: VmSample,
  interval_seconds: whole(1, 86_400),
  /** Oldest first, an hour at most. */
  samples: listOf(VmSample, SAMPLES_MAX),
});
export type MetricsResult = Of<typeof MetricsResult>;

export const UsageResult = named('UsageResult', {
  vms: listOf(closed({ instance_id: InstanceId, sample: VmSample }), USAGE_VMS_MAX),
});
export type UsageResult = Of<typeof UsageResult>;

export const OpenPortResult = named('OpenPortResult', { address: GuestPortAddress });
export type OpenPortResult = Of<typeof OpenPortResult>;

/** The result of each kind of call; null: a stream. */
export const RESULTS: Readonly<Record<HostCall['kind'], TSchema>> = {
  exec: ExecResult,
  console_log: ConsoleLogResult,
  console: Type.Null(),
  ssh: Type.Null(),
  port: Type.Null(),
  open_port: OpenPortResult,
  metrics: MetricsResult,
  usage: UsageResult,
  file: Type.Null(),
  ...EXEC_RESULTS,
};

export const CallAnswer = Type.Union([
  closed({
    result: Type.Union([
      ...[ExecResult, ConsoleLogResult, MetricsResult, UsageResult, OpenPortResult],
      ...[ExecStartResult, ExecControlResult],
      Type.Null(),
    ]),
  }),
  closed({ error: CallFailure }),
]);
export type CallAnswer =
  | { readonly result: unknown; readonly error?: never }
  | { readonly error: CallFailure; readonly result?: never };

export const PendingCall = named('PendingCall', {
  id: Uuid,
  call: HostCall,
  trace_context: Type.Optional(TraceContext),
});
export type PendingCall = Of<typeof PendingCall>;
/** `fresh`: the agent has just started, so calls that the previous one had taken get no answer. */
export const CallsRequest = named('CallsRequest', { fresh: Type.Boolean() });
export type CallsRequest = Of<typeof CallsRequest>;
export const CallsResponse = named('CallsResponse', { calls: listOf(PendingCall, CALLS_MAX) });
export type CallsResponse = Of<typeof CallsResponse>;
export const AnswerRequest = named('AnswerRequest', {
  id: Uuid,
  answer: CallAnswer,
});
export interface AnswerRequest {
  readonly id: string;
  readonly answer: CallAnswer;
}
/** A control plane passes on a host's answer to the one whose call it is. */
export const PeerAnswerRequest = named('PeerAnswerRequest', {
  host_id: HostId,
  id: Uuid,
  answer: CallAnswer,
});

/** The protocol of the HTTP upgrade for streams. */
export const CONSOLE_PROTOCOL = 'berth-console';
export function consoleStreamPath(call_id: string): string {
  return `/internal/v1/calls/${call_id}/stream`;
}

/** The path where the ingress opens a tunnel to a VM on another host, by the same protocol: to its sshd, or to a TCP port. */
export function tunnelPath(instance_id: IdOfInstance, port?: number): string {
  return `/internal/v1/tunnels/${instance_id}${port === undefined ? '' : `/${port}`}`;
}

/** For the caller of a port where the guest accepts no connection. */
export function notListeningMessage(port: number): string {
  return `Nothing listens on port ${port} at the VM's address. Start your program in the VM, and let it listen on 0.0.0.0:${port}: one that listens on 127.0.0.1 only is not reachable.`;
}
