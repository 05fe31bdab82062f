/**
 * A task of the guest's supervisor (file-tasks.pl) as a duplex stream: what is written goes to the task, and what the
 * task sends is read. Flow control works in both directions: the guest stops when its window is full, and so do writers
 * here. Nothing is stored; a task ends with its channel.
 */
import { Duplex } from 'node:stream';
import type { Send } from './exec.ts';
import { TO_GUEST } from './exec-channel.ts';

/** What was sent and not taken. */
const AHEAD_BYTES = 512 * 1024;
const PIECE_BYTES = 60 * 1024;
/** Read here and not by the reader, before the guest waits. Its window comes on top. */
const BUFFER_BYTES = 512 * 1024;
const ACKNOWLEDGE_BYTES = 256 * 1024;
/** A guest that ignores its window. */
const UNREAD_BYTES = 4 * 1024 * 1024;

export class GuestTask extends Duplex {
  readonly #send: Send;
  #sent = 0;
  #taken = 0;
  #received = 0;
  #acknowledged = 0;
  #resume: (() => void) | null = null;

  constructor(send: Send) {
    super({ readableHighWaterMark: BUFFER_BYTES, writableHighWaterMark: BUFFER_BYTES, allowHalfOpen: true });
    this.#send = send;
  }

  /** From the guest. False: it broke the protocol. */
  receive(offset: number, data: Buffer): boolean {
    if (this.destroyed) return true;
    if (offset !== this.#received || this.readableLength > UNREAD_BYTES) return false;
    this.#received += data.length;
    if (this.push(data)) this.#acknowledge();
    return true;
  }

  noteTaken(taken: number): void {
    if (taken <= this.#taken || taken > this.#sent) return;
    this.#taken = taken;
    const resume = this.#resume;
    this.#resume = null;
    resume?.();
  }

  /** The task has said everything. */
  finish(): void {
    this.push(null);
  }

  override _read(): void {
    this.#acknowledge();
  }

  override _write(chunk: Buffer, _encoding: string, done: (error?: Error | null) => void): void {
    let at = 0;
    const sendMore = (): void => {
      for (; at < chunk.length; at += PIECE_BYTES) {
        if (this.#sent - this.#taken >= AHEAD_BYTES) {
          this.#resume = sendMore;
          return;
        }
        this.#sendInput(chunk.subarray(at, at + PIECE_BYTES));
      }
      done();
    };
    sendMore();
  }

  override _final(done: (error?: Error | null) => void): void {
    this.#send(TO_GUEST.eof);
    done();
  }

  override _destroy(error: Error | null, done: (error?: Error | null) => void): void {
    this.#resume = null;
    if (!this.readableEnded) this.#send(TO_GUEST.signal, Buffer.of(SIGTERM));
    done(error);
  }

  #sendInput(piece: Buffer): void {
    const payload = Buffer.allocUnsafe(8 + piece.length);
    payload.writeBigUInt64BE(BigInt(this.#sent));
    piece.copy(payload, 8);
    this.#send(TO_GUEST.input, payload);
    this.#sent += piece.length;
  }

  #acknowledge(): void {
    if (this.#received - this.#acknowledged < ACKNOWLEDGE_BYTES) return;
    this.#acknowledged = this.#received;
    const payload = Buffer.alloc(8);
    payload.writeBigUInt64BE(BigInt(this.#received));
    this.#send(TO_GUEST.acknowledge, payload);
  }
}

const SIGTERM = 15;
