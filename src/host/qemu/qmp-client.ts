/**
 * The client of QMP, the protocol of QEMU's monitor (docs/interop/qmp-spec in QEMU's tree). `QmpClient` is one
 * connection to one QEMU. The file also waits for QEMU's jobs, and types the commands and events that Berth uses.
 *
 * Invariants:
 * - Every command settles: by its reply, its timeout, or the end of the connection.
 * - Listeners get events in QEMU's order, synchronously, before the continuation of any later reply.
 * - After the close nothing is delivered, and every later call rejects with {@link QmpClosedError}.
 * - A compromised QEMU costs little: lines are bounded before they are parsed, reading is within a budget, QEMU's texts
 *   are cut and cleaned, and the data of an event is checked to be an object.
 * - QEMU serves one QMP client at a time. A second one waits in the listen queue until the first has disconnected.
 */
import { once } from 'node:events';
import { messageOf } from '../../shared/errors.ts';
import { untrustedText } from '../../shared/untrusted-text.ts';
import { LineSplitter, PacedReader, ReadBudget } from './paced-reader.ts';

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

export type CommandArguments<C extends QmpCommandName> =
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
  execute<C extends QmpCommandName>(command: C, ...rest: CommandArguments<C>): Promise<QmpReturn<C>> {
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

/** QEMU has no job with that id. */
export class JobGoneError extends Error {
  override name = 'JobGoneError';
}

/** A job in one of these states changes no more. */
const FINAL: readonly JobState[] = ['concluded', 'null'];

/**
 * Resolves with the job once it is in one of `states` or in a final state (`concluded`: check `error`). Jobs are created with
 * `auto-dismiss=false`, so a finished one stays `concluded` until `job-dismiss`, and query-jobs shows a state whose event was missed.
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

/*
 * From here on: the part of QMP that Berth speaks, typed after QEMU 7.2's schema (docs/interop/qemu-qmp-ref: run-state, job,
 * block-core, block-export, transaction, misc). Names keep QMP's own spelling: they cross a wire.
 */

const JOB_STATES = [
  'undefined',
  'created',
  'running',
  'paused',
  'ready',
  'standby',
  'waiting',
  'pending',
  'aborting',
  'concluded',
  'null',
] as const;
export type JobState = (typeof JOB_STATES)[number];

const RUN_STATES = [
  'debug',
  'inmigrate',
  'internal-error',
  'io-error',
  'paused',
  'postmigrate',
  'prelaunch',
  'finish-migrate',
  'restore-vm',
  'running',
  'save-vm',
  'shutdown',
  'suspended',
  'watchdog',
  'guest-panicked',
  'colo',
] as const;
export type RunState = (typeof RUN_STATES)[number];

export interface StatusInfo {
  readonly running: boolean;
  readonly singlestep: boolean;
  readonly status: RunState;
}

/** `error` is present only after the job has failed. The unit of progress depends on the job (bytes for backup). */
export interface JobInfo {
  readonly id: string;
  readonly type: string;
  readonly status: JobState;
  readonly 'current-progress': number;
  readonly 'total-progress': number;
  readonly error?: string;
}

/** `count` is in bytes, a multiple of `granularity`. */
export interface DirtyBitmapInfo {
  readonly name?: string;
  readonly count: number;
  readonly granularity: number;
  readonly recording: boolean;
  readonly busy: boolean;
  readonly persistent: boolean;
  readonly inconsistent?: boolean;
}

export interface BlockImageInfo {
  readonly filename: string;
  readonly format: string;
  readonly 'virtual-size': number;
  readonly 'actual-size'?: number;
}

export interface BlockNodeInfo {
  readonly 'node-name'?: string;
  readonly drv: string;
  readonly ro: boolean;
  readonly file: string;
  readonly backing_file?: string;
  readonly image: BlockImageInfo;
  readonly 'dirty-bitmaps'?: readonly DirtyBitmapInfo[];
}

export interface BlockStats {
  readonly rd_bytes: number;
  readonly wr_bytes: number;
  readonly rd_operations: number;
  readonly wr_operations: number;
  readonly unmap_operations: number;
  readonly flush_operations: number;
}

export interface BlockStatsInfo {
  readonly device?: string;
  readonly qdev?: string;
  readonly 'node-name'?: string;
  readonly stats: BlockStats;
}

export interface BlockExportInfo {
  readonly id: string;
  readonly type: string;
  readonly 'node-name': string;
  readonly 'shutting-down': boolean;
}

/** A node of the block graph. Drivers have too many options to list them all. */
export interface BlockdevOptions {
  readonly driver: string;
  readonly 'node-name': string;
  readonly [option: string]: unknown;
}

export interface BackupArguments {
  readonly 'job-id': string;
  /** The node or qdev to read. */
  readonly device: string;
  /** The node to write. */
  readonly target: string;
  readonly sync: 'full' | 'top' | 'none' | 'incremental' | 'bitmap';
  readonly bitmap?: string;
  readonly 'bitmap-mode'?: 'on-success' | 'never' | 'always';
  /** Bytes per second; 0 is unlimited. */
  readonly speed?: number;
  readonly 'auto-finalize'?: boolean;
  readonly 'auto-dismiss'?: boolean;
  readonly 'on-source-error'?: 'report' | 'ignore' | 'enospc' | 'stop' | 'auto';
  readonly 'on-target-error'?: 'report' | 'ignore' | 'enospc' | 'stop' | 'auto';
  readonly 'filter-node-name'?: string;
  readonly 'x-perf'?: {
    readonly 'use-copy-range'?: boolean;
    readonly 'max-workers'?: number;
    readonly 'max-chunk'?: number;
  };
}

export interface BitmapAddArguments {
  readonly node: string;
  readonly name: string;
  /** Bytes, a power of two. */
  readonly granularity?: number;
  readonly persistent?: boolean;
  readonly disabled?: boolean;
}

export interface BitmapReference {
  readonly node: string;
  readonly name: string;
}

export type TransactionAction =
  | { readonly type: 'blockdev-backup'; readonly data: BackupArguments }
  | { readonly type: 'block-dirty-bitmap-add'; readonly data: BitmapAddArguments }
  | { readonly type: 'block-dirty-bitmap-clear'; readonly data: BitmapReference };

export interface TransactionArguments {
  readonly actions: readonly TransactionAction[];
  readonly properties?: { readonly 'completion-mode'?: 'individual' | 'grouped' };
}

/** Bytes or requests per second; 0: no limit. Burst lengths are in seconds. */
export interface ThrottleArguments {
  readonly id: string;
  readonly bps: number;
  readonly bps_rd: number;
  readonly bps_wr: number;
  readonly iops: number;
  readonly iops_rd: number;
  readonly iops_wr: number;
  readonly bps_max?: number;
  readonly bps_max_length?: number;
  readonly iops_max?: number;
  readonly iops_max_length?: number;
}

export interface BlockDeviceInfo {
  readonly qdev?: string;
  readonly inserted?: Pick<ThrottleArguments, 'bps' | 'iops' | 'bps_max' | 'iops_max'>;
}

export interface NbdExportArguments {
  readonly type: 'nbd';
  readonly id: string;
  readonly 'node-name': string;
  readonly name?: string;
  readonly writable?: boolean;
  readonly bitmaps?: readonly (string | BitmapReference)[];
}

type Empty = Record<string, never>;
interface Call<A, R> {
  readonly arguments: A;
  readonly returns: R;
}

/** Every command that {@link QmpClient.execute} accepts. */
export interface QmpCommands {
  qmp_capabilities: Call<{ readonly enable?: readonly string[] }, Empty>;
  'query-version': Call<undefined, { readonly qemu: QemuVersion; readonly package: string }>;
  'query-name': Call<undefined, { readonly name?: string }>;
  'query-status': Call<undefined, StatusInfo>;
  'query-jobs': Call<undefined, readonly JobInfo[]>;
  'query-blockstats': Call<{ readonly 'query-nodes'?: boolean }, readonly BlockStatsInfo[]>;
  'query-named-block-nodes': Call<{ readonly flat?: boolean }, readonly BlockNodeInfo[]>;
  'query-block': Call<undefined, readonly BlockDeviceInfo[]>;
  'query-block-exports': Call<undefined, readonly BlockExportInfo[]>;
  'blockdev-add': Call<BlockdevOptions, Empty>;
  'blockdev-del': Call<{ readonly 'node-name': string }, Empty>;
  block_resize: Call<{ readonly 'node-name': string; readonly size: number }, Empty>;
  'blockdev-reopen': Call<{ readonly options: readonly BlockdevOptions[] }, Empty>;
  'blockdev-backup': Call<BackupArguments, Empty>;
  'nbd-server-start': Call<{ readonly addr: NbdListen; readonly 'max-connections'?: number }, Empty>;
  'nbd-server-stop': Call<undefined, Empty>;
  block_set_io_throttle: Call<ThrottleArguments, Empty>;
  'block-export-add': Call<NbdExportArguments, Empty>;
  'block-dirty-bitmap-add': Call<BitmapAddArguments, Empty>;
  'block-dirty-bitmap-remove': Call<BitmapReference, Empty>;
  'block-dirty-bitmap-clear': Call<BitmapReference, Empty>;
  transaction: Call<TransactionArguments, Empty>;
  'job-finalize': Call<{ readonly id: string }, Empty>;
  'job-cancel': Call<{ readonly id: string }, Empty>;
  'job-dismiss': Call<{ readonly id: string }, Empty>;
  'block-job-set-speed': Call<{ readonly device: string; readonly speed: number }, Empty>;
  system_reset: Call<undefined, Empty>;
  cont: Call<undefined, Empty>;
  stop: Call<undefined, Empty>;
  quit: Call<undefined, Empty>;
  'migrate-set-capabilities': Call<
    { readonly capabilities: readonly { readonly capability: string; readonly state: boolean }[] },
    Empty
  >;
  'migrate-set-parameters': Call<{ readonly 'max-bandwidth'?: number }, Empty>;
  migrate_cancel: Call<undefined, Empty>;
  migrate: Call<{ readonly uri: string }, Empty>;
  'migrate-incoming': Call<{ readonly uri: string }, Empty>;
  'query-migrate': Call<undefined, { readonly status?: string; readonly 'error-desc'?: string }>;
  'human-monitor-command': Call<{ readonly 'command-line': string }, string>;
}
export type QmpCommandName = keyof QmpCommands;
export type QmpArguments<C extends QmpCommandName> = QmpCommands[C]['arguments'];
export type QmpReturn<C extends QmpCommandName> = QmpCommands[C]['returns'];

export interface QemuVersion {
  readonly major: number;
  readonly minor: number;
  readonly micro: number;
}

/** `nbd-server-start` takes a socket address in the older, wrapped form. */
export interface NbdListen {
  readonly type: 'unix';
  readonly data: { readonly path: string };
}

export interface ShutdownData {
  /** The guest asked for it. */
  readonly guest: boolean;
  /** 'guest-shutdown', 'guest-panic', 'host-qmp-quit', 'host-signal', … */
  readonly reason: string;
}

export interface BlockJobEventData {
  readonly type: string;
  readonly device: string;
  readonly len: number;
  readonly offset: number;
  readonly speed: number;
  readonly error?: string;
}

export interface QmpEventData {
  SHUTDOWN: ShutdownData;
  POWERDOWN: undefined;
  RESET: ShutdownData;
  STOP: undefined;
  RESUME: undefined;
  SUSPEND: undefined;
  WAKEUP: undefined;
  GUEST_PANICKED: { readonly action: string; readonly info?: unknown };
  JOB_STATUS_CHANGE: { readonly id: string; readonly status: JobState };
  BLOCK_JOB_PENDING: { readonly type: string; readonly id: string };
  BLOCK_JOB_COMPLETED: BlockJobEventData;
  BLOCK_JOB_CANCELLED: BlockJobEventData;
  BLOCK_JOB_ERROR: { readonly device: string; readonly operation: string; readonly action: string };
  BLOCK_IO_ERROR: {
    readonly device: string;
    readonly 'node-name'?: string;
    readonly operation: 'read' | 'write';
    readonly action: 'ignore' | 'report' | 'stop';
    readonly nospace?: boolean;
    readonly reason: string;
  };
  BLOCK_EXPORT_DELETED: { readonly id: string };
  /** The guest opened or closed a virtio-serial port; `id` is the port's device id. */
  VSERPORT_CHANGE: { readonly id: string; readonly open: boolean };
  MIGRATION: { readonly status: string };
}
export type QmpEventName = keyof QmpEventData;

/** Microseconds since the epoch on the host's clock, as QEMU stamps it. */
export interface QmpTimestamp {
  readonly seconds: number;
  readonly microseconds: number;
}

/** An event, discriminated by `event`. Events with other names are delivered too. */
export type QmpEvent = {
  readonly [N in QmpEventName]: {
    readonly event: N;
    readonly data: QmpEventData[N];
    readonly timestamp: QmpTimestamp;
  };
}[QmpEventName];
