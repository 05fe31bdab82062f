/**
 * Reads from a guest or its QEMU, which may be hostile: only while a message is expected, only within a budget, and in
 * lines of bounded length. While the socket is not read, back-pressure stops the sender: QEMU does not read from a
 * guest port whose socket is full.
 *
 * A read counts as at least {@link READ_BYTES}, so sending single bytes is no cheaper for the sender. The time to parse
 * what was read counts too. A line over the limit is refused even before its LF arrives.
 */
import { connect, type Socket } from 'node:net';

const READ_BYTES = 8 * 1024;
/** A sender may use one fiftieth of this thread's time, unless its pace says otherwise. */
const TIMES = 50;

export interface Pace {
  readonly bytes_per_second: number;
  /** Bytes that may be read at once after silence. */
  readonly burst_bytes: number;
  /** A sender may use one such part of this thread's time. */
  readonly times?: number;
}

/** A token bucket. One read may overdraw it; the next read then waits. */
export class ReadBudget {
  readonly #pace: Pace;
  readonly #now: () => number;
  readonly #worked: () => number;
  #left_bytes: number;
  #counted_at_ms: number;

  /** `worked`: processor time of this thread, ms. */
  constructor(pace: Pace, now: () => number = () => performance.now(), worked: () => number = threadTimeMs) {
    this.#pace = pace;
    this.#now = now;
    this.#worked = worked;
    this.#left_bytes = pace.burst_bytes;
    this.#counted_at_ms = now();
  }

  spend(bytes: number): void {
    this.#refill();
    this.#left_bytes -= bytes;
  }

  /** Runs `work` and charges its processor time: a short message may be slow to parse. */
  spendOn<T>(work: () => T): T {
    const before_ms = this.#worked();
    try {
      return work();
    } finally {
      this.spend(
        ((this.#worked() - before_ms) * (this.#pace.times ?? TIMES) * this.#pace.bytes_per_second) / 1_000,
      );
    }
  }

  /** Time until the bucket is positive again, ms. 0: it is. */
  get wait_ms(): number {
    this.#refill();
    return Math.max(0, Math.ceil((-this.#left_bytes * 1_000) / this.#pace.bytes_per_second));
  }

  #refill(): void {
    const now_ms = this.#now();
    const earned = ((now_ms - this.#counted_at_ms) * this.#pace.bytes_per_second) / 1_000;
    this.#left_bytes = Math.min(this.#pace.burst_bytes, this.#left_bytes + earned);
    this.#counted_at_ms = now_ms;
  }
}

/** Not wall time, in which other threads may run. */
function threadTimeMs(): number {
  const { user, system } = process.threadCpuUsage();
  return (user + system) / 1_000;
}

/** Shared by all sockets: `receive` copies the bytes before the next read starts. */
const SHARED = Buffer.allocUnsafeSlow(64 * 1024);

export class PacedReader {
  readonly socket: Socket;
  readonly #budget: ReadBudget;
  #expecting = false;
  #timer: NodeJS.Timeout | undefined;

  /** Connects, and reads nothing until {@link expect}. `receive` must not throw. */
  constructor(path: string, budget: ReadBudget, receive: (chunk: Buffer) => void) {
    this.#budget = budget;
    // A socket with `onread` stops reading when it is paused. One without would first fill its stream buffer.
    const callback = (bytes: number, into: Uint8Array): boolean => {
      budget.spend(Math.max(bytes, READ_BYTES));
      receive(Buffer.from(into.subarray(0, bytes)));
      return this.#goesOn();
    };
    this.socket = connect({ path, onread: { buffer: SHARED, callback } });
    this.socket.pause();
    this.socket.once('connect', () => this.#read());
    this.socket.once('close', () => clearTimeout(this.#timer));
  }

  /** Starts or stops reading. */
  expect(something: boolean): void {
    this.#expecting = something;
    this.#read();
  }

  #read(): void {
    if (this.#goesOn()) this.socket.resume();
    else this.socket.pause();
  }

  /** Whether to read now. If only the budget forbids it, reading resumes when the budget allows. */
  #goesOn(): boolean {
    clearTimeout(this.#timer);
    if (!this.#expecting || this.socket.destroyed || this.socket.connecting) return false;
    const wait_ms = this.#budget.wait_ms;
    if (wait_ms > 0) this.#timer = setTimeout(() => this.#read(), wait_ms);
    return wait_ms === 0;
  }
}

const LF = 0x0a;
const NOTHING = Buffer.alloc(0);

export class LineTooLongError extends Error {
  override name = 'LineTooLongError';
}

/**
 * Splits a byte stream into lines ending in LF, for QMP and the guest agent. Invariant: a line over the limit is refused
 * even before its LF arrives, so at most one line and one read after it are in memory.
 */
export class LineSplitter {
  readonly #max_line_bytes: number;
  #held: Buffer = NOTHING;
  /** The first bytes of `#held` that are known to have no LF. */
  #searched = 0;

  constructor(max_line_bytes: number) {
    this.#max_line_bytes = max_line_bytes;
  }

  push(chunk: Buffer): void {
    this.#held = this.#held.length === 0 ? chunk : Buffer.concat([this.#held, chunk]);
  }

  /** The next line without its LF; null: it is incomplete. @throws LineTooLongError */
  next(): Buffer | null {
    const end = this.#held.indexOf(LF, this.#searched);
    const length = end === -1 ? this.#held.length : end;
    if (length > this.#max_line_bytes) {
      this.reset();
      throw new LineTooLongError(`a line is longer than ${this.#max_line_bytes} bytes`);
    }
    if (end === -1) {
      this.#searched = length;
      return null;
    }
    const line = this.#held.subarray(0, end);
    this.#hold(this.#held.subarray(end + 1));
    return line;
  }

  /** Bytes that were pushed and not yet returned. */
  get held_bytes(): number {
    return this.#held.length;
  }

  /** Drops the held bytes. */
  reset(): void {
    this.#hold(NOTHING);
  }

  #hold(rest: Buffer): void {
    // An empty view would keep its whole buffer alive.
    this.#held = rest.length === 0 ? NOTHING : rest;
    this.#searched = 0;
  }
}
