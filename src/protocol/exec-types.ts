/**
 * Defines the messages about execs and files of guests: the calls of the control plane, the reports of hosts, and the
 * frames of the stream to an exec.
 */
import { type TSchema, Type } from 'typebox';
import {
  anyText,
  Bytes,
  closed,
  InstanceId,
  idOf,
  listOf,
  Milliseconds,
  matching,
  named,
  nullable,
  type Of,
  oneOf,
  Text,
  Time,
  VmId,
  whole,
} from './schemas.ts';

/** The end of the output that is kept: of each exec, and of all execs of an instance. */
export const OUTPUT_KEPT_BYTES = 8 * 1024 * 1024;
export const OUTPUTS_KEPT_BYTES = 64 * 1024 * 1024;
/** The most output that an exec can have. */
export const OUTPUT_BYTES_MAX = 2 ** 50;
/** Execs that run at once in a VM. */
export const RUNNING_MAX = 32;
/** Ended execs of an instance that are kept. */
export const ENDED_KEPT = 100;
/** Of one request of input. */
export const INPUT_BYTES = 1024 * 1024;
/** Of all words of an exec: Linux accepts no more. */
const WORDS_BYTES = 2 * 1024 * 1024;
const REPORTED_MAX = 500;
/** What had ended before an exec's end was known: the guest's boot, or the process that runs execs there, while the boot went on. */
export const LOST_WITH = ['boot', 'supervisor'] as const;
export type LostWith = (typeof LOST_WITH)[number];

export const ExecId = idOf('exec');
const OfExec = { instance_id: InstanceId, exec_id: ExecId };
const TerminalSize = { columns: whole(1, 65_535), rows: whole(1, 65_535) };

/** Each is one of the calls in `host-calls.ts`. */
export const ExecStartCall = closed({
  kind: Type.Literal('exec_start'),
  ...OfExec,
  vm_id: VmId,
  command: listOf(anyText(WORDS_BYTES), 4_096),
  /** `NAME=value`. */
  environment: listOf(anyText(WORDS_BYTES), 4_096),
  cwd: anyText(4_096),
  user: anyText(256),
  tty: nullable(closed(TerminalSize)),
  stdin: Type.Boolean(),
  timeout_ms: nullable(Milliseconds),
});
export const ExecControlCall = closed({
  kind: Type.Literal('exec_control'),
  ...OfExec,
  action: Type.Union([
    closed({ kind: Type.Literal('signal'), signal: whole(1, 64) }),
    closed({ kind: Type.Literal('resize'), ...TerminalSize }),
    /** In base64. */
    closed({ kind: Type.Literal('input'), data: anyText(2 * INPUT_BYTES), eof: Type.Boolean() }),
  ]),
});
/** Answered by a stream of frames ({@link FRAME}). */
export const ExecStreamCall = closed({
  kind: Type.Literal('exec_stream'),
  ...OfExec,
  offset: Bytes,
  /** Continue until the exec has ended. */
  follow: Type.Boolean(),
  /** The exec waits for the reader when it reads too slowly, and for a while after it was lost. */
  attached: Type.Boolean(),
  /** The reader may send input. */
  input: Type.Boolean(),
});

/** Null: it runs. */
export const ExecStartResult = named('ExecStartResult', {
  refused: nullable(closed({ field: oneOf(['cwd', 'user']), issue: Text })),
});
export type ExecStartResult = Of<typeof ExecStartResult>;
export const ExecControlResult = named('ExecControlResult', {
  outcome: oneOf(['done', 'ended', 'no_terminal', 'no_input']),
});
export type ExecControlResult = Of<typeof ExecControlResult>;

export const ExecEnd = named('ExecEnd', {
  state: oneOf(['exited', 'lost']),
  exit_code: nullable(whole(0, 255)),
  signal: nullable(whole(1, 127)),
  timed_out: Type.Boolean(),
  ended_at: Time,
  /** Of a lost one. */
  lost_with: Type.Optional(oneOf(LOST_WITH)),
});
export type ExecEnd = Of<typeof ExecEnd>;

export const ReportedExec = named('ReportedExec', {
  ...OfExec,
  output_bytes: whole(0, OUTPUT_BYTES_MAX),
  /** Null: it runs. */
  end: nullable(ExecEnd),
  /** Its input was not closed, and nobody is attached: one that has an input may wait for ever. */
  waits: Type.Optional(Type.Boolean()),
});
export type ReportedExec = Of<typeof ReportedExec>;
export const ExecsReport = named('ExecsReport', { execs: listOf(ReportedExec, REPORTED_MAX) });
export type ExecsReport = Of<typeof ExecsReport>;

export const EXEC_RESULTS: Readonly<Record<'exec_start' | 'exec_control' | 'exec_stream', TSchema>> = {
  exec_start: ExecStartResult,
  exec_control: ExecControlResult,
  exec_stream: Type.Null(),
};

/** Of a path, as Linux has it. */
export const PATH_BYTES = 4_095;
/** Of one file name. */
const NAME_BYTES = 255;
/** Requests for files that a VM serves at once. */
export const FILE_CALLS_MAX = 32;
/** Percent-encoded bytes. */
const Path = matching('^/', 3 * PATH_BYTES);
const Name = matching('^[^/]*$', 3 * NAME_BYTES);
const Mode = nullable(matching('^[0-7]{3,4}$', 4));
const User = nullable(anyText(256));

export const FileCall = closed({
  kind: Type.Literal('file'),
  instance_id: InstanceId,
  vm_id: VmId,
  action: Type.Union([
    closed({ verb: Type.Literal('read'), path: Path }),
    closed({ verb: Type.Literal('write'), path: Path, mode: Mode, user: User }),
    /** Up to `count` entries after the one with this name. */
    closed({ verb: Type.Literal('list'), path: Path, after: nullable(Name), count: whole(1, 1_000) }),
    closed({ verb: Type.Literal('remove'), path: Path, recursive: Type.Boolean() }),
    closed({ verb: Type.Literal('move'), path: Path, to: Path }),
    closed({ verb: Type.Literal('directory'), path: Path, mode: Mode, user: User }),
  ]),
});

/**
 * The frames of a stream to an exec, between control plane and agent: length (4 bytes), type (1 byte), payload.
 *
 *   agent:          attached (offset) · output of stdout or stderr (offset, bytes)… · exit (a ReportedExec as JSON), or end
 *   control plane:  input (bytes) · eof · resize (columns, rows: 2 bytes each) · signal (1 byte) · leave
 *
 * Offsets have 8 bytes. `end` is the end of a reading that does not follow. Without `exit` or `end` the stream was cut off. Output
 * whose offset is beyond what has been read means that the output between them is no longer kept. A reader that goes without
 * `leave` is lost, and may come back.
 */
export const FRAME = {
  input: 0,
  stdout: 1,
  stderr: 2,
  attached: 3,
  exit: 4,
  eof: 5,
  resize: 6,
  signal: 7,
  end: 8,
  leave: 9,
} as const;

const HEADER_BYTES = 5;
const PAYLOAD_MAX = 128 * 1024;

export interface StreamFrame {
  readonly type: number;
  readonly payload: Buffer;
}

export class MalformedStreamError extends Error {
  override name = 'MalformedStreamError';
}

export function streamFrame(type: number, ...payload: readonly Uint8Array[]): Buffer {
  const header = Buffer.alloc(HEADER_BYTES);
  header.writeUInt32BE(payload.reduce((bytes, each) => bytes + each.length, 0));
  header.writeUInt8(type, 4);
  return Buffer.concat([header, ...payload]);
}

export function offsetBytes(offset: number): Buffer {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64BE(BigInt(offset));
  return bytes;
}

/** @throws MalformedStreamError */
export function readOffset(payload: Buffer): { readonly offset: number; readonly rest: Buffer } {
  if (payload.length < 8) throw new MalformedStreamError('a frame has no offset');
  const offset = Number(payload.readBigUInt64BE());
  if (!Number.isSafeInteger(offset)) throw new MalformedStreamError('an offset is too large');
  return { offset, rest: payload.subarray(8) };
}

/** Splits a byte stream into frames. At most one frame and one read are in memory. */
export class StreamFrames {
  #held: Buffer = Buffer.alloc(0);

  /** The frames that `chunk` completes. @throws MalformedStreamError */
  push(chunk: Buffer): StreamFrame[] {
    this.#held = this.#held.length === 0 ? chunk : Buffer.concat([this.#held, chunk]);
    const found: StreamFrame[] = [];
    for (;;) {
      const held = this.#held;
      if (held.length < HEADER_BYTES) return found;
      const length = held.readUInt32BE();
      if (length > PAYLOAD_MAX) throw new MalformedStreamError('a frame is too large');
      if (held.length < HEADER_BYTES + length) return found;
      found.push({ type: held.readUInt8(4), payload: held.subarray(HEADER_BYTES, HEADER_BYTES + length) });
      this.#held = held.subarray(HEADER_BYTES + length);
    }
  }
}
