/**
 * Reads what a guest, or its QEMU, sends: only while something is expected, and no faster than a budget has room. Otherwise
 * the socket is not read, and its sender waits: QEMU reads nothing more from a guest whose port or serial line has no room.
 *
 * A read counts for {@link READ_BYTES} at least, so single bytes cost this process no more than many at once; and the time that
 * it takes to understand what was read counts too.
 */
import { connect, type Socket } from 'node:net';

const READ_BYTES = 8 * 1024;
/** A sender may take one fiftieth of this thread's time. */
const TIMES = 50;

export interface Pace {
  readonly bytes_per_second: number;
  /** May be read at once after a while of silence. */
  readonly burst_bytes: number;
}

/** A token bucket. It may be overdrawn by one read, and is then waited for. */
export class ReadBudget {
  readonly #pace: Pace;
  readonly #now: () => number;
  readonly #worked: () => number;
  #left_bytes: number;
  #counted_at_ms: number;

  /** `worked`: processor time that this thread has had, ms. */
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

  /** Does what it takes to understand what was read, and counts its time: what is short may be hard to parse. */
  spendOn<T>(work: () => T): T {
    const before_ms = this.#worked();
    try {
      return work();
    } finally {
      this.spend(((this.#worked() - before_ms) * TIMES * this.#pace.bytes_per_second) / 1_000);
    }
  }

  /** Until it has room again; 0: it has. */
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

/** Not the clock's: others may have the processor meanwhile. */
function threadTimeMs(): number {
  const { user, system } = process.threadCpuUsage();
  return (user + system) / 1_000;
}

/** For all sockets: what a read has put there is copied before the next one begins. */
const SHARED = Buffer.allocUnsafeSlow(64 * 1024);

export class PacedReader {
  readonly socket: Socket;
  readonly #budget: ReadBudget;
  #expecting = false;
  #timer: NodeJS.Timeout | undefined;

  /** Connects, and reads nothing before it is to. `receive` must not throw. */
  constructor(path: string, budget: ReadBudget, receive: (chunk: Buffer) => void) {
    this.#budget = budget;
    // Such a socket stops reading as soon as it is paused; one with a stream's buffer would fill that first, byte by byte.
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

  /** From now on; false: until further notice nothing is. */
  expect(something: boolean): void {
    this.#expecting = something;
    this.#read();
  }

  #read(): void {
    if (this.#goesOn()) this.socket.resume();
    else this.socket.pause();
  }

  /** Whether to read now; where only the budget is against it, that is seen to. */
  #goesOn(): boolean {
    clearTimeout(this.#timer);
    if (!this.#expecting || this.socket.destroyed || this.socket.connecting) return false;
    const wait_ms = this.#budget.wait_ms;
    if (wait_ms > 0) this.#timer = setTimeout(() => this.#read(), wait_ms);
    return wait_ms === 0;
  }
}
