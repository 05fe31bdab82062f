/**
 * The byte channel to a guest agent: lines out, lines in, with deadlines.
 * Invariants: at most one reader waits; unread lines are bounded; once closed, every wait rejects.
 */
import { connect, type Socket } from 'node:net';
import { LineSplitter } from '../qmp/line-splitter.ts';
import { GuestAgentClosedError, GuestAgentProtocolError, GuestAgentTimeoutError } from './agent-errors.ts';

/** qemu-ga keeps up to 16 MiB each of a command's output and errors, and sends them as base64 in one line. */
const MAX_LINE_BYTES = 48 * 1024 * 1024;
/**
 * Replies that nobody waited for. A guest that takes minutes to boot is greeted every two seconds, and answers all at
 * once, with two lines each: the one for the 0xFF is an error. More than that means that the guest is not an agent.
 */
const MAX_UNREAD_LINES = 1_000;

interface Reader {
  resolve(line: Buffer): void;
  reject(error: Error): void;
}

export class AgentChannel {
  readonly #socket: Socket;
  readonly #splitter = new LineSplitter(MAX_LINE_BYTES);
  #unread: Buffer[] = [];
  #unread_bytes = 0;
  #reader: Reader | undefined;
  #ended: Error | undefined;

  constructor(socket: Socket) {
    this.#socket = socket;
    socket.on('data', (chunk: Buffer) => this.#receive(chunk));
    socket.on('error', (error) => this.destroy(new GuestAgentClosedError(error.message)));
    socket.on('close', () => this.destroy(new GuestAgentClosedError('QEMU closed the guest agent channel')));
  }

  get closed(): boolean {
    return this.#ended !== undefined;
  }

  send(bytes: Buffer): void {
    if (!this.#ended) this.#socket.write(bytes);
  }

  /** Drops what has arrived and was not read. A line half received stays: its rest is still to come. */
  clear(): void {
    this.#unread = [];
    this.#unread_bytes = 0;
  }

  /** The next line, at the latest at `deadline` (performance.now's scale). */
  nextLine(deadline: number, what: string): Promise<Buffer> {
    const line = this.#unread.shift();
    if (line) {
      this.#unread_bytes -= line.length;
      return Promise.resolve(line);
    }
    if (this.#ended) return Promise.reject(this.#ended);
    const { promise, resolve, reject } = Promise.withResolvers<Buffer>();
    const timer = setTimeout(
      () => reject(new GuestAgentTimeoutError(`${what}: no answer from the guest in time`)),
      Math.max(0, deadline - performance.now()),
    );
    const reader: Reader = { resolve, reject };
    this.#reader = reader;
    const release = (): void => {
      clearTimeout(timer);
      if (this.#reader === reader) this.#reader = undefined;
    };
    promise.then(release, release);
    return promise;
  }

  destroy(reason: Error): void {
    if (this.#ended) return;
    this.#ended = reason;
    this.clear();
    this.#socket.destroy();
    this.#reader?.reject(reason);
  }

  #keep(line: Buffer): void {
    this.#unread.push(line);
    this.#unread_bytes += line.length;
    if (this.#unread.length > MAX_UNREAD_LINES || this.#unread_bytes > MAX_LINE_BYTES) {
      throw new Error(`more than ${MAX_UNREAD_LINES} lines or ${MAX_LINE_BYTES} bytes that nobody asked for`);
    }
  }

  #receive(chunk: Buffer): void {
    try {
      for (const line of this.#splitter.push(chunk)) {
        const reader = this.#reader;
        this.#reader = undefined;
        if (reader) reader.resolve(line);
        else this.#keep(line);
      }
    } catch (error) {
      this.destroy(new GuestAgentProtocolError('the guest sends what no agent sends', { cause: error }));
    }
  }
}

/** Rejects with {@link GuestAgentClosedError} when nothing listens there, or in time. */
export async function openAgentChannel(socket_path: string, deadline: number): Promise<AgentChannel> {
  const socket = connect({ path: socket_path });
  const opened = Promise.withResolvers<void>();
  socket.once('connect', opened.resolve);
  socket.once('error', opened.reject);
  const timer = setTimeout(
    () => socket.destroy(new Error('no connection in time')),
    Math.max(0, deadline - performance.now()),
  );
  try {
    await opened.promise;
    return new AgentChannel(socket);
  } catch (cause) {
    throw new GuestAgentClosedError('the guest agent channel does not open', { cause });
  } finally {
    clearTimeout(timer);
  }
}
