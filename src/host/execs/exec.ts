/**
 * Keeps one exec of this host: its record, the end of its output, its readers, and the input that the exec has not read
 * yet. Tells the supervisor in the guest which output need not be kept there. A reader that the exec waits for delays
 * this when it is slow, and so delays the exec.
 *
 *   running ──it exits──▶ exited      running ──its boot or its supervisor has ended──▶ lost
 */
import type { ExecEnd } from '../../protocol/exec-types.ts';
import { Signal } from '../../shared/concurrency.ts';
import type { ExecId } from '../../shared/ids.ts';
import { TO_GUEST } from './exec-channel.ts';
import { ExecOutput, type ExecRecord, writeExecRecord } from './exec-output.ts';

/** Input that the guest has not read, at most. */
const INPUT_AHEAD_BYTES = 256 * 1024;
const INPUT_PIECE_BYTES = 32 * 1024;
/** How far a reader may be behind before the exec waits for it. */
const BEHIND_BYTES = 1024 * 1024;
/** How long the exec waits for a reader that was lost. The supervisor waits as long when it loses this process. */
const LOST_READER_MS = 60_000;
/** And how long its input stays open after the stream was lost that it came over. */
const LOST_INPUT_MS = 60_000;
/** Sent to a reader, and perhaps lost with its connection. */
const ON_THE_WAY_BYTES = 4 * 1024 * 1024;
/** The guest frees its memory a piece at a time. */
const ACKNOWLEDGE_BYTES = 256 * 1024;

const NEVER = new AbortController().signal;

export type Send = (type: string, payload?: Uint8Array) => void;

/** What a supervisor says of an exec that it has. */
export interface ListedExec {
  /** Everything before it was acknowledged. */
  readonly base: number;
  /** Bytes of input. */
  readonly received: number;
  readonly input_ended: boolean;
  /** For a reader, or for a lost one to come back. */
  readonly waits: boolean;
}

/** Of one that sends input. */
export interface InputStream {
  /** Input came, or an empty message that says that it will. */
  readonly noteInput: () => void;
  /** Call it once. A lost stream may come back. */
  readonly end: (is_lost: boolean) => void;
}

/** A reader that the exec waits for, and what it has read. */
export interface AwaitedReader {
  readonly offset: number;
}

export class HostExec {
  readonly output: ExecOutput;
  /** More output, or its end. */
  readonly changed = new Signal();
  /** Input was taken, or cannot be any more. */
  readonly input_taken = new Signal();
  readonly #awaited = new Set<AwaitedReader>();
  /** The last of them, if it was lost a short time ago. */
  #lost: (AwaitedReader & { readonly timer: NodeJS.Timeout }) | null = null;
  readonly #folder: string;
  #record: ExecRecord;
  #readers = 0;
  #acknowledged = 0;
  /** Of the input: taken by the exec, and sent to the guest. The bytes in between are kept, to be sent again. */
  #taken = 0;
  #pending: Buffer = Buffer.alloc(0);
  #input_ended = false;
  #inputs: Promise<unknown> = Promise.resolve();
  #input_streams = 0;
  /** Since its input's last stream was lost, while others could come. Null: it waits for none. */
  #input_lost_ms: number | null = null;
  /** The output of a running exec, as it was last reported. */
  reported_bytes = -1;
  reported_waiting = false;

  constructor(folder: string, record: ExecRecord) {
    this.#folder = folder;
    this.#record = record;
    this.output = new ExecOutput(folder, record.id, record.output_bytes);
    this.#acknowledged = this.output.end;
    // Its stream was lost with the agent before, if not earlier.
    if (record.streamed_input && record.end === null) this.#input_lost_ms = 0;
  }

  get id(): ExecId {
    return this.#record.id;
  }
  /** As frames name it. */
  get key(): string {
    return this.id.slice('exec_'.length);
  }
  get record(): ExecRecord {
    return this.#record;
  }
  get end(): ExecEnd | null {
    return this.#record.end;
  }

  update(change: Partial<ExecRecord>): void {
    this.#record = { ...this.#record, ...change };
    writeExecRecord(this.#folder, this.#record);
  }

  /** Call the returned function once, when the reader leaves. */
  addReader(): () => void {
    this.#readers += 1;
    this.output.followed = true;
    return () => {
      this.#readers -= 1;
      this.output.followed = this.#readers > 0;
    };
  }

  /** The exec waits for `reader`. Call the returned function when it leaves: a lost one may come back. */
  waitFor(reader: AwaitedReader, send: Send): (is_lost: boolean) => void {
    this.#forgetLost();
    this.#awaited.add(reader);
    this.#sayWhetherItWaits(send);
    return (is_lost) => {
      this.#awaited.delete(reader);
      if (is_lost && this.#awaited.size === 0) this.#waitForLost(reader.offset, send);
      this.#sayWhetherItWaits(send);
      this.acknowledge(send, true);
    };
  }

  get #readers_offset(): number {
    const readers = this.#lost === null ? [...this.#awaited] : [this.#lost, ...this.#awaited];
    return Math.min(...readers.map(({ offset }) => offset));
  }

  #waitForLost(offset: number, send: Send): void {
    if (this.end !== null) return;
    const giveUp = (): void => {
      this.#lost = null;
      this.#sayWhetherItWaits(send);
      this.acknowledge(send, true);
    };
    this.#lost = { offset, timer: setTimeout(giveUp, LOST_READER_MS).unref() };
  }

  #forgetLost(): void {
    clearTimeout(this.#lost?.timer);
    this.#lost = null;
  }

  /** So that it goes on waiting when it loses this process. */
  #sayWhetherItWaits(send: Send): void {
    if (this.end === null) send(TO_GUEST.wait, Buffer.of(Number.isFinite(this.#readers_offset) ? 1 : 0));
  }

  receive(offset: number, stream: number, data: Buffer): void {
    this.output.wanted_from = this.#readers_offset - ON_THE_WAY_BYTES;
    this.output.append(offset, stream, data);
    this.changed.notify();
  }

  /** Tells the guest what it need not keep. A slow reader delays this, and so the exec. */
  acknowledge(send: Send, at_once = false): void {
    const upto = Math.min(this.output.end, this.#readers_offset + BEHIND_BYTES);
    if (upto <= this.#acknowledged || (!at_once && upto - this.#acknowledged < ACKNOWLEDGE_BYTES)) return;
    this.#acknowledged = upto;
    const payload = Buffer.alloc(8);
    payload.writeBigUInt64BE(BigInt(upto));
    send(TO_GUEST.acknowledge, payload);
  }

  /** A supervisor has it, as it says. */
  resume(send: Send, session: string, { base, received, input_ended, waits }: ListedExec): void {
    if (this.#record.session !== session) this.update({ session });
    // The reader of an earlier agent had read up to here at least.
    if (waits && !Number.isFinite(this.#readers_offset))
      this.#waitForLost(Math.max(0, Math.min(base, this.output.end) - BEHIND_BYTES), send);
    this.#sayWhetherItWaits(send);
    this.#acknowledged = 0;
    this.acknowledge(send, true);
    const missing = this.#pending.subarray(Math.max(0, received - this.#taken));
    if (missing.length > 0) this.#send(send, received, missing);
    else if (received > this.#taken + this.#pending.length) this.#taken = received - this.#pending.length;
    if (this.#input_ended && !input_ended) send(TO_GUEST.eof);
    this.#input_ended ||= input_ended;
  }

  finish(end: ExecEnd): void {
    if (this.end !== null) return;
    this.#forgetLost();
    this.update({ end, output_bytes: this.output.end });
    this.#pending = Buffer.alloc(0);
    this.changed.notify();
    this.input_taken.notify();
  }

  noteTaken(taken: number): void {
    if (taken <= this.#taken || taken > this.#taken + this.#pending.length) return;
    this.#pending = this.#pending.subarray(taken - this.#taken);
    this.#taken = taken;
    this.input_taken.notify();
  }

  /** Sends input in the order of the calls; resolves once the guest has room for more. False: the exec takes no more. */
  write(send: Send, data: Buffer, eof: boolean, signal: AbortSignal): Promise<boolean> {
    const written = this.#inputs.then(() => this.#write(send, data, eof, signal));
    this.#inputs = written.catch(() => undefined);
    return written;
  }

  async #write(send: Send, data: Buffer, eof: boolean, signal: AbortSignal): Promise<boolean> {
    for (let at = 0; at < data.length; at += INPUT_PIECE_BYTES) {
      while (this.#pending.length >= INPUT_AHEAD_BYTES && this.end === null && !signal.aborted)
        await this.input_taken.wait({ signal });
      signal.throwIfAborted();
      if (this.end !== null || this.#input_ended) return false;
      const piece = data.subarray(at, at + INPUT_PIECE_BYTES);
      const offset = this.#taken + this.#pending.length;
      this.#pending = Buffer.concat([this.#pending, piece]);
      this.#send(send, offset, piece);
    }
    if (this.end !== null || (this.#input_ended && data.length > 0)) return false;
    if (eof && !this.#input_ended) {
      this.#input_ended = true;
      send(TO_GUEST.eof);
    }
    return true;
  }

  /** It has a stream that input may come over: while it does, and for a while after the last was lost, its input stays open. */
  addInputStream(): InputStream {
    this.#input_streams += 1;
    this.#input_lost_ms = null;
    let is_used = false;
    return {
      noteInput: () => {
        is_used = true;
        this.#noteStreamedInput(true);
      },
      end: (is_lost) => {
        this.#input_streams -= 1;
        if (is_used && !is_lost) this.#noteStreamedInput(false);
        const waits = this.record.streamed_input && this.#input_streams === 0;
        this.#input_lost_ms = waits ? 0 : null;
      },
    };
  }

  /** Input came in a request, whose caller may take its time until the next. */
  noteRequestedInput(): void {
    this.#input_lost_ms = null;
    this.#noteStreamedInput(false);
  }

  #noteStreamedInput(streamed_input: boolean): void {
    if (this.end === null && this.record.streamed_input !== streamed_input) this.update({ streamed_input });
  }

  /** Ends the input that nobody will send any more. */
  passTime(send: Send, elapsed_ms: number): void {
    if (this.#input_lost_ms === null || this.end !== null) return;
    this.#input_lost_ms += elapsed_ms;
    if (this.#input_lost_ms < LOST_INPUT_MS) return;
    this.#input_lost_ms = null;
    this.write(send, Buffer.alloc(0), true, NEVER).catch(() => undefined);
  }

  /** Nobody reads or feeds it. If it has an input, it may wait for ever. */
  get waits_for_nobody(): boolean {
    return !this.#input_ended && this.#readers === 0;
  }

  #send(send: Send, offset: number, bytes: Buffer): void {
    const payload = Buffer.alloc(8 + bytes.length);
    payload.writeBigUInt64BE(BigInt(offset));
    bytes.copy(payload, 8);
    send(TO_GUEST.input, payload);
  }
}
