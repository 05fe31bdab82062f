/**
 * One QMP connection to one QEMU (docs/interop/qmp-spec in QEMU's tree): greeting, capabilities, commands with
 * ids, events.
 *
 * Invariants:
 * - every command settles: by its reply, its timeout, or the end of the connection;
 * - listeners get events in QEMU's order, synchronously, before the continuation of any later reply;
 * - after the close nothing is delivered, and every later call rejects with {@link QmpClosedError};
 * - a compromised QEMU costs little: lines are bounded before they are parsed, reading is within a budget, its texts are
 *   cut and cleaned, and an event's data is checked to be an object.
 *
 * QEMU serves one QMP client at a time. A second one waits in the listen queue until the first has disconnected.
 */
import { once } from 'node:events';
import { messageOf } from '../../shared/errors.ts';
import { untrustedText } from '../../shared/untrusted-text.ts';
import { LineSplitter } from './line-splitter.ts';
import { PacedReader, ReadBudget } from './paced-reader.ts';
import type { JobInfo, JobState, QmpArguments, QmpCommandName, QmpEvent, QmpReturn } from './qmp-types.ts';

const DEFAULT_TIMEOUT_MS = 10_000;
/** Far above the largest reply: the sockets of a guest with thousands of connections. */
const MAX_LINE_BYTES = 1024 * 1024;
const PACE = { bytes_per_second: 4 * 1024 * 1024, burst_bytes: 4 * 1024 * 1024 };
/** The minimum that a message counts, because it is parsed and many may listen. */
const MESSAGE_BYTES = 1024;
const MAX_PENDING = 256;

/** QEMU replied to a command with an error. */
export class QmpError extends Error {
  override name = 'QmpError';
  readonly command: string;
  /** 'GenericError', 'CommandNotFound', 'DeviceNotFound', … */
  readonly error_class: string;
  readonly desc: string;

  constructor(command: string, error_class: unknown, desc: unknown) {
    const text = untrustedText(desc) || 'unknown error';
    super(`${command}: ${text}`);
    this.command = command;
    this.error_class = untrustedText(error_class) || 'GenericError';
    this.desc = text;
  }
}

/** The connection has ended: QEMU exited, or {@link QmpClient.close} was called. */
export class QmpClosedError extends Error {
  override name = 'QmpClosedError';
  /** {@link QmpClient.close} ended it, so it says nothing about QEMU's health. */
  readonly by_us: boolean;

  constructor(message: string, by_us: boolean, cause?: unknown) {
    super(message, { cause });
    this.by_us = by_us;
  }
}

/** No reply or no event in time. QEMU may still execute the command. */
export class QmpTimeoutError extends Error {
  override name = 'QmpTimeoutError';
}

export interface QmpConnectOptions {
  /** Until the capabilities are negotiated. */
  readonly timeout_ms?: number;
  readonly max_line_bytes?: number;
}

export interface QmpWaitOptions {
  readonly timeout_ms: number;
  readonly signal?: AbortSignal;
}

type Arguments<C extends QmpCommandName> =
  undefined extends QmpArguments<C>
    ? [args?: undefined, options?: { timeout_ms?: number }]
    : [args: QmpArguments<C>, options?: { timeout_ms?: number }];

interface Pending {
  readonly command: string;
  readonly timer: NodeJS.Timeout;
  resolve(value: unknown): void;
  reject(error: Error): void;
}

interface Message {
  readonly QMP?: unknown;
  readonly event?: unknown;
  readonly data?: unknown;
  readonly id?: unknown;
  readonly return?: unknown;
  readonly error?: { readonly class?: unknown; readonly desc?: unknown } | null;
}

export class QmpClient {
  readonly #input: PacedReader;
  readonly #budget = new ReadBudget(PACE);
  readonly #splitter: LineSplitter;
  readonly #pending = new Map<number, Pending>();
  readonly #event_listeners = new Set<(event: QmpEvent) => void>();
  readonly #close_listeners = new Set<(reason: QmpClosedError) => void>();
  readonly #greeted = Promise.withResolvers<void>();
  #next_id = 1;
  #closed: QmpClosedError | undefined;

  /** Use {@link QmpClient.connect}. */
  private constructor(socket_path: string, max_line_bytes: number) {
    this.#splitter = new LineSplitter(max_line_bytes);
    this.#greeted.promise.catch(() => {});
    this.#input = new PacedReader(socket_path, this.#budget, (chunk) => this.#receive(chunk));
    const { socket } = this.#input;
    socket.on('error', (error) => this.#end(`QMP connection failed: ${error.message}`, false, error));
    socket.on('close', () => this.#end('QEMU closed the QMP connection', false));
    this.#input.expect(true);
  }

  /**
   * Connects and negotiates. Rejects with the system error (ENOENT, ECONNREFUSED: QEMU does not listen yet, or has exited),
   * {@link QmpClosedError}, or {@link QmpTimeoutError} (also when another client is connected).
   */
  static async connect(socket_path: string, options: QmpConnectOptions = {}): Promise<QmpClient> {
    const timeout_ms = options.timeout_ms ?? DEFAULT_TIMEOUT_MS;
    const client = new QmpClient(socket_path, options.max_line_bytes ?? MAX_LINE_BYTES);
    const { socket } = client.#input;
    const timer = setTimeout(
      () => socket.destroy(new QmpTimeoutError('no QMP greeting in time')),
      timeout_ms,
    );
    try {
      await once(socket, 'connect');
      await client.#greeted.promise;
      await client.execute('qmp_capabilities', {}, { timeout_ms });
      return client;
    } catch (error) {
      socket.destroy();
      if (error instanceof QmpClosedError && error.cause instanceof QmpTimeoutError) throw error.cause;
      throw error;
    } finally {
      clearTimeout(timer);
    }
  }

  get closed(): boolean {
    return this.#closed !== undefined;
  }

  /**
   * Runs one command. Several may be in flight. Rejects with {@link QmpError} (QEMU refused it),
   * {@link QmpTimeoutError} (default 10 s; a late reply is dropped) or {@link QmpClosedError}.
   */
  execute<C extends QmpCommandName>(command: C, ...rest: Arguments<C>): Promise<QmpReturn<C>> {
    const [args, options] = rest;
    if (this.#closed) return Promise.reject(this.#closed);
    if (this.#pending.size >= MAX_PENDING) {
      return Promise.reject(new Error(`${command}: ${MAX_PENDING} QMP commands are already waiting`));
    }
    const timeout_ms = options?.timeout_ms ?? DEFAULT_TIMEOUT_MS;
    const id = this.#next_id++;
    const { promise, resolve, reject } = Promise.withResolvers<unknown>();
    const timer = setTimeout(() => {
      this.#pending.delete(id);
      reject(new QmpTimeoutError(`${command}: no reply within ${timeout_ms} ms`));
    }, timeout_ms);
    this.#pending.set(id, { command, timer, resolve, reject });
    this.#input.socket.write(
      `${JSON.stringify({ execute: command, ...(args === undefined ? {} : { arguments: args }), id })}\n`,
    );
    return promise as Promise<QmpReturn<C>>;
  }

  /** Calls `listener` for every event until the returned function is called. It must not throw. */
  onEvent(listener: (event: QmpEvent) => void): () => void {
    this.#event_listeners.add(listener);
    return () => this.#event_listeners.delete(listener);
  }

  /**
   * The first event after this call for which `predicate` holds. Call it before the command that causes the event, and await
   * it afterwards, so that no event is missed. Rejects with {@link QmpTimeoutError}, {@link QmpClosedError}, or the signal's
   * reason. The promise may be abandoned.
   */
  waitForEvent<E extends QmpEvent>(
    predicate: (event: QmpEvent) => event is E,
    options: QmpWaitOptions,
  ): Promise<E>;
  waitForEvent(predicate: (event: QmpEvent) => boolean, options: QmpWaitOptions): Promise<QmpEvent>;
  waitForEvent(predicate: (event: QmpEvent) => boolean, options: QmpWaitOptions): Promise<QmpEvent> {
    const { promise, resolve, reject } = Promise.withResolvers<QmpEvent>();
    promise.catch(() => {});
    if (this.#closed) reject(this.#closed);
    else if (options.signal?.aborted) reject(options.signal.reason);
    else {
      const onAbort = (): void => reject(options.signal?.reason);
      const timer = setTimeout(
        () => reject(new QmpTimeoutError(`no such event within ${options.timeout_ms} ms`)),
        options.timeout_ms,
      );
      const stopEvents = this.onEvent((event) => predicate(event) && resolve(event));
      const stopClose = this.onClose(reject);
      options.signal?.addEventListener('abort', onAbort, { once: true });
      const release = (): void => {
        clearTimeout(timer);
        stopEvents();
        stopClose();
        options.signal?.removeEventListener('abort', onAbort);
      };
      promise.then(release, release);
    }
    return promise;
  }

  /**
   * Calls `listener` once, at the end of the connection. That is the quickest sign of QEMU's death, as QEMU is not a child
   * process. A listener added after the end is called in the next microtask.
   */
  onClose(listener: (reason: QmpClosedError) => void): () => void {
    const reason = this.#closed;
    if (reason) queueMicrotask(() => listener(reason));
    else this.#close_listeners.add(listener);
    return () => this.#close_listeners.delete(listener);
  }

  /** Disconnects. QEMU keeps running and accepts the next client. */
  close(): void {
    this.#end('this side closed the QMP connection', true);
  }

  #receive(chunk: Buffer): void {
    try {
      this.#splitter.push(chunk);
      for (let line = this.#splitter.next(); line && !this.#closed; line = this.#splitter.next()) {
        const text = line.toString('utf8').trim();
        if (text === '') continue;
        this.#budget.spend(MESSAGE_BYTES);
        this.#dispatch(this.#budget.spendOn(() => JSON.parse(text) as Message | null));
      }
    } catch (error) {
      // The parser's message quotes the input.
      this.#end(`QMP stream is broken: ${untrustedText(messageOf(error))}`, false, error);
    }
  }

  #dispatch(message: Message | null): void {
    if (typeof message !== 'object' || message === null)
      throw new Error('QEMU sent something that is not a message');
    if (typeof message.event === 'string') {
      const data = typeof message.data === 'object' && message.data !== null ? message.data : {};
      const event = { ...message, data } as unknown as QmpEvent;
      for (const listener of [...this.#event_listeners]) deliver(listener, event);
      return;
    }
    if (message.QMP !== undefined) {
      this.#greeted.resolve();
      return;
    }
    const pending = typeof message.id === 'number' ? this.#pending.get(message.id) : undefined;
    if (!pending) return;
    this.#pending.delete(message.id as number);
    clearTimeout(pending.timer);
    if (message.error) {
      pending.reject(new QmpError(pending.command, message.error.class, message.error.desc));
    } else pending.resolve(message.return);
  }

  #end(message: string, by_us: boolean, cause?: unknown): void {
    if (this.#closed) return;
    const reason = new QmpClosedError(message, by_us, cause);
    this.#closed = reason;
    this.#input.socket.destroy();
    this.#greeted.reject(reason);
    for (const pending of this.#pending.values()) {
      clearTimeout(pending.timer);
      pending.reject(new QmpClosedError(`${pending.command}: ${message}`, by_us, cause));
    }
    this.#pending.clear();
    for (const listener of [...this.#close_listeners]) deliver(listener, reason);
    this.#close_listeners.clear();
    this.#event_listeners.clear();
  }
}

/** A listener's bug is an uncaught exception, and not mistaken for a broken connection. */
function deliver<T>(listener: (value: T) => void, value: T): void {
  try {
    listener(value);
  } catch (error) {
    queueMicrotask(() => {
      throw error;
    });
  }
}

/**
 * Waits for a QEMU block job. Jobs are created with `auto-dismiss=false`, so a finished one stays `concluded` until
 * `job-dismiss`, and query-jobs shows a state whose event was missed.
 */

/** QEMU has no job with that id. */
export class JobGoneError extends Error {
  override name = 'JobGoneError';
}

/** A job in one of these states changes no more. */
const FINAL: readonly JobState[] = ['concluded', 'null'];

/**
 * Resolves with the job once it is in one of `states` or in a final state (`concluded`: check `error`).
 * Rejects with {@link JobGoneError}, QmpTimeoutError, QmpClosedError, or the signal's reason.
 */
export async function waitForJob(
  client: QmpClient,
  id: string,
  states: readonly JobState[],
  options: { readonly timeout_ms: number; readonly signal?: AbortSignal },
): Promise<JobInfo> {
  const deadline = performance.now() + options.timeout_ms;
  for (;;) {
    const left_ms = Math.max(1, Math.ceil(deadline - performance.now()));
    const abandon = new AbortController();
    const signal = options.signal ? AbortSignal.any([options.signal, abandon.signal]) : abandon.signal;
    // Listen before asking, so that no change in between is missed.
    const changed = client.waitForEvent(
      (event) => event.event === 'JOB_STATUS_CHANGE' && event.data.id === id,
      { timeout_ms: left_ms, signal },
    );
    try {
      // The signal also ends the wait for a QEMU that does not reply.
      const asked = client.execute('query-jobs', undefined, { timeout_ms: left_ms });
      const jobs = await Promise.race([asked, changed.then(() => asked)]);
      const job = jobs.find((candidate) => candidate.id === id);
      if (!job) throw new JobGoneError(`QEMU has no job ${id}`);
      if (states.includes(job.status) || FINAL.includes(job.status)) return job;
      if (performance.now() >= deadline) {
        throw new QmpTimeoutError(`job ${id} is still ${job.status} after ${options.timeout_ms} ms`);
      }
      await changed;
    } finally {
      abandon.abort();
    }
  }
}
