/**
 * The byte channel to a guest agent: lines out, lines in, with deadlines.
 *
 * Invariants:
 * - the socket is read only while somebody waits for a line; unrequested output stays in the guest and costs nothing here;
 * - a line, and everything between a send and the line that ends the wait, is bounded before it is parsed;
 * - at most one reader waits; once the channel is closed, every wait rejects.
 */
import { once } from 'node:events';
import { LineSplitter } from '../qmp/line-splitter.ts';
import { PacedReader, ReadBudget } from '../qmp/paced-reader.ts';
import { GuestAgentClosedError, GuestAgentProtocolError, GuestAgentTimeoutError } from './agent-errors.ts';

/** Of a reply. Files and command output are read in pieces that fit. */
export const MAX_LINE_BYTES = 64 * 1024;
/**
 * Skipped between a send and its answer: answers to calls that timed out. A guest that boots for minutes, or hung for hours, was
 * sent many syncs, and answers all of them at once with two lines each; the one for the 0xFF is an error.
 */
const MAX_PASSED_LINES = 2_000;
const MAX_PASSED_BYTES = 1024 * 1024;
/** Of one VM. The output of one command comes in a burst, further output at the speed of a slow disk. */
const PACE = { bytes_per_second: 4 * 1024 * 1024, burst_bytes: 2 * 1024 * 1024 };
/** The minimum cost of a line. */
const LINE_BYTES = 1024;

interface Reader {
  resolve(line: Buffer): void;
  reject(error: Error): void;
}

export function agentBudget(): ReadBudget {
  return new ReadBudget(PACE);
}

export class AgentChannel {
  readonly #input: PacedReader;
  readonly #budget: ReadBudget;
  readonly #splitter = new LineSplitter(MAX_LINE_BYTES);
  #passed = { lines: 0, bytes: 0 };
  #reader: Reader | undefined;
  #ended: Error | undefined;

  /** Use {@link openAgentChannel}. */
  constructor(path: string, budget: ReadBudget) {
    this.#budget = budget;
    this.#input = new PacedReader(path, budget, (chunk) => this.#receive(chunk));
    const { socket } = this.#input;
    socket.on('error', (error) => this.destroy(new GuestAgentClosedError(error.message)));
    socket.on('close', () => this.destroy(new GuestAgentClosedError('QEMU closed the guest agent channel')));
  }

  async opened(signal: AbortSignal): Promise<void> {
    await once(this.#input.socket, 'connect', { signal });
  }

  get closed(): boolean {
    return this.#ended !== undefined;
  }

  /** Unread data is left: the next line may not answer the next command. */
  get holds_more(): boolean {
    return this.#splitter.held_bytes > 0;
  }

  /** Parses a line, and charges the time to the guest's budget. */
  parse<T>(parse: () => T): T {
    return this.#budget.spendOn(parse);
  }

  send(bytes: Buffer): void {
    this.#passed = { lines: 0, bytes: 0 };
    if (!this.#ended) this.#input.socket.write(bytes);
  }

  /** The next line. Rejects at `deadline` (performance.now's scale). */
  nextLine(deadline: number, what: string): Promise<Buffer> {
    const { promise, resolve, reject } = Promise.withResolvers<Buffer>();
    if (this.#ended) {
      reject(this.#ended);
      return promise;
    }
    const reader: Reader = { resolve, reject };
    this.#reader = reader;
    this.#deliver();
    // A line was here already, or the channel has failed.
    if (this.#reader !== reader || this.#ended) return promise;
    const timer = setTimeout(
      () => reject(new GuestAgentTimeoutError(`${what}: no answer from the guest in time`)),
      Math.max(0, deadline - performance.now()),
    );
    const release = (): void => {
      clearTimeout(timer);
      if (this.#reader !== reader) return;
      this.#reader = undefined;
      this.#input.expect(false);
    };
    promise.then(release, release);
    this.#input.expect(true);
    return promise;
  }

  destroy(reason: Error): void {
    if (this.#ended) return;
    this.#ended = reason;
    this.#splitter.reset();
    this.#input.socket.destroy();
    this.#reader?.reject(reason);
  }

  #receive(chunk: Buffer): void {
    if (this.#ended) return;
    this.#splitter.push(chunk);
    this.#deliver();
  }

  /** Passes an available line to the waiting reader. */
  #deliver(): void {
    const reader = this.#reader;
    if (!reader) return;
    try {
      const line = this.#splitter.next();
      if (!line) return;
      this.#count(line);
      this.#reader = undefined;
      this.#input.expect(false);
      reader.resolve(line);
    } catch (error) {
      this.destroy(new GuestAgentProtocolError('the guest broke the agent protocol', { cause: error }));
    }
  }

  #count(line: Buffer): void {
    this.#budget.spend(LINE_BYTES);
    this.#passed.lines += 1;
    this.#passed.bytes += line.length;
    const { lines, bytes } = this.#passed;
    if (lines > MAX_PASSED_LINES || bytes > MAX_PASSED_BYTES)
      throw new Error(`more than ${MAX_PASSED_LINES} lines or ${MAX_PASSED_BYTES} unrequested bytes`);
  }
}

/** Rejects with {@link GuestAgentClosedError} if nothing accepts in time. `budget`: shared by a VM's channels. */
export async function openAgentChannel(
  socket_path: string,
  deadline: number,
  budget: ReadBudget = agentBudget(),
): Promise<AgentChannel> {
  const channel = new AgentChannel(socket_path, budget);
  try {
    await channel.opened(AbortSignal.timeout(Math.max(0, Math.ceil(deadline - performance.now()))));
    return channel;
  } catch (cause) {
    const closed = new GuestAgentClosedError('the guest agent channel does not open', { cause });
    channel.destroy(closed);
    throw closed;
  }
}
