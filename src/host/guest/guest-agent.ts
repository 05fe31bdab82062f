/**
 * The client of a VM's guest agent (qemu-ga), over its Unix socket (docs/interop/qemu-ga-ref in QEMU's tree).
 * `AgentConduct` cuts off an agent that breaks the protocol, for a while.
 *
 * Invariants:
 * - One command at a time, in the order of the calls. Each call has one deadline.
 * - A command is sent only when its reply cannot be mistaken for another's. So after a connect, and after a command
 *   without a reply, `guest-sync-delimited` comes first: its leading 0xFF resets the agent's parser, and everything
 *   before the 0xFF of its answer is dropped.
 * - Nothing the guest sends is trusted: lines are bounded, and replies are checked where they are used.
 */
import { randomInt } from 'node:crypto';
import { once } from 'node:events';
import { pause } from '../../shared/retry.ts';
import { untrustedText } from '../../shared/untrusted-text.ts';
import { LineSplitter, PacedReader, ReadBudget } from '../qemu/paced-reader.ts';

/** No answer in time: the guest is busy, frozen, still booting, or has no agent. This does not mean that the VM has failed. */
export class GuestAgentTimeoutError extends Error {
  override name = 'GuestAgentTimeoutError';
}

/** The agent broke the protocol and is cut off for a while: the call was not sent. */
export class GuestAgentCutOffError extends GuestAgentTimeoutError {
  override name = 'GuestAgentCutOffError';
}

/** The agent answered with an error. */
export class GuestAgentError extends Error {
  override name = 'GuestAgentError';
  readonly command: string;
  /** The agent's message, shortened and cleaned. Untrusted text from the guest. */
  readonly desc: string;

  constructor(command: string, desc: unknown) {
    const text = untrustedText(desc) || 'unknown error';
    super(`${command}: ${text}`);
    this.command = command;
    this.desc = text;
  }
}

/** QEMU closed the channel, or is gone. */
export class GuestAgentClosedError extends Error {
  override name = 'GuestAgentClosedError';
}

/** The guest broke the protocol: an endless line, no JSON, a reply of the wrong shape. */
export class GuestAgentProtocolError extends Error {
  override name = 'GuestAgentProtocolError';
}

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

function agentBudget(): ReadBudget {
  return new ReadBudget(PACE);
}

/**
 * The byte channel to a guest agent: lines out, lines in, with deadlines.
 *
 * Invariants:
 * - the socket is read only while somebody waits for a line; unrequested output stays in the guest and costs nothing here;
 * - a line, and everything between a send and the line that ends the wait, is bounded before it is parsed;
 * - at most one reader waits; once the channel is closed, every wait rejects.
 */
class AgentChannel {
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

/** Longer than a healthy guest takes to answer. */
const SILENT_MS = 20_000;
const CUT_OFF_MS = 1_000;
const MAX_CUT_OFF_MS = 60_000;
const REMEMBERED_MS = 300_000;

/**
 * The conduct of a guest's agent, and its consequences. Pure: the caller passes times, on performance.now's scale.
 *
 *   answers ──breaks the protocol──▶ cut off for 1 s, then 2, 4 … 60 ──answers──▶ answers
 *      └──does not answer for 20 s──▶ silent ──answers──▶ answers
 *
 * `is_silent` holds in both states. Breaking the protocol again within five minutes doubles the time of the cut-off, also after
 * answers in between.
 */
export class AgentConduct {
  #is_silent = false;
  /** When the first unanswered call was sent. */
  #unanswered_since: number | null = null;
  #cut_off_ms = 0;
  #cut_off_until = Number.NEGATIVE_INFINITY;

  get is_silent(): boolean {
    return this.#is_silent;
  }

  /** The remaining time of the cut-off; 0: the agent may be called. */
  cutOffMs(now: number): number {
    return Math.max(0, this.#cut_off_until - now);
  }

  answered(): void {
    this.#is_silent = false;
    this.#unanswered_since = null;
  }

  /** A call that was sent at `asked_at` has timed out. */
  didNotAnswer(asked_at: number, now: number): void {
    this.#unanswered_since ??= asked_at;
    if (now - this.#unanswered_since >= SILENT_MS) this.#is_silent = true;
  }

  brokeProtocol(now: number): void {
    const again = now - this.#cut_off_until < REMEMBERED_MS;
    this.#cut_off_ms = again ? Math.min(MAX_CUT_OFF_MS, this.#cut_off_ms * 2) : CUT_OFF_MS;
    this.#cut_off_until = now + this.#cut_off_ms;
    this.#is_silent = true;
  }

  /** The guest was reset, or was paused by its host. */
  forgive(): void {
    this.answered();
    this.#cut_off_until = Number.NEGATIVE_INFINITY;
  }
}

const DEFAULT_TIMEOUT_MS = 5_000;
/** How long guest-shutdown waits for a refusal. Success has no answer. */
const SHUTDOWN_REFUSAL_MS = 500;
/** How long the first sync to a booting guest may take; each later one twice as long, up to LATER_SYNCS_MS. */
const FIRST_SYNC_MS = 125;
const LATER_SYNCS_MS = 2_000;

export interface AgentCallOptions {
  /** For the whole call, including the wait for earlier calls and the sync. Default 5 s. */
  readonly timeout_ms?: number;
}

interface AgentReply {
  readonly return?: unknown;
  readonly error?: { readonly desc?: unknown } | null;
}

/** What most of its users need: to run its commands. */
export type GuestCommands = Pick<GuestAgent, 'execute'>;

export class GuestAgent {
  readonly #socket_path: string;
  readonly #budget = agentBudget();
  readonly #conduct = new AgentConduct();
  readonly #changed: () => void;
  #channel: AgentChannel | undefined;
  #in_step = false;
  #maybe_frozen = false;
  #closed = false;
  #tail: Promise<unknown> = Promise.resolve();

  /** Connects at the first call, and again after a lost connection. `changed`: called when {@link is_silent} changes. */
  constructor(socket_path: string, changed: () => void = () => undefined) {
    this.#socket_path = socket_path;
    this.#changed = changed;
  }

  /** It breaks the protocol, or has not answered for long. */
  get is_silent(): boolean {
    return this.#conduct.is_silent;
  }

  /** It is cut off: a call would reject at once, unsent. */
  get is_cut_off(): boolean {
    return this.#conduct.cutOffMs(performance.now()) > 0;
  }

  /** The guest was reset, or was paused by its host: forget its earlier silence. */
  forgive(): void {
    this.#judge(() => this.#conduct.forgive());
  }

  /** True from the moment a freeze was sent until a thaw, or a status of `thawed`, was confirmed. */
  get maybe_frozen(): boolean {
    return this.#maybe_frozen;
  }

  /**
   * Runs one command of the agent. `args` may be a JSON text, for numbers beyond 2^53. Rejects with
   * {@link GuestAgentError} (the guest refused), {@link GuestAgentTimeoutError} (also where it is cut off),
   * {@link GuestAgentClosedError} (QEMU is gone or closed the channel), {@link GuestAgentProtocolError} (not an answer of an agent).
   */
  execute(
    command: string,
    args?: Record<string, unknown> | string,
    options: AgentCallOptions = {},
  ): Promise<unknown> {
    return this.#enqueue(command, options.timeout_ms ?? DEFAULT_TIMEOUT_MS, async (deadline) => {
      const channel = await this.#getInStep(deadline);
      return this.#exchange(channel, command, args, deadline);
    });
  }

  async ping(options: AgentCallOptions = {}): Promise<void> {
    await this.execute('guest-ping', undefined, options);
  }

  /**
   * Resolves once the agent answers. QEMU holds a sync until the guest opens its end of the port. A sync is lost if the guest's
   * first process has the port open and then closes it, so the sync is repeated: soon at first, then every two seconds.
   * Rejects with {@link GuestAgentTimeoutError}, {@link GuestAgentClosedError}, or the signal's reason.
   */
  async waitUntilUp(timeout_ms: number, signal?: AbortSignal): Promise<void> {
    const deadline = performance.now() + timeout_ms;
    for (let wait_ms = FIRST_SYNC_MS; ; wait_ms = Math.min(2 * wait_ms, LATER_SYNCS_MS)) {
      signal?.throwIfAborted();
      const left_ms = deadline - performance.now();
      if (left_ms <= 0)
        throw new GuestAgentTimeoutError(`the guest agent did not come up in ${timeout_ms} ms`);
      const attempt = this.ping({ timeout_ms: Math.min(left_ms, wait_ms) }).then(
        () => true,
        (error: unknown) => {
          if (error instanceof GuestAgentTimeoutError) return false;
          throw error;
        },
      );
      if (await (signal ? Promise.race([attempt, rejectOnAbort(signal)]) : attempt)) return;
      await pause(Math.min(left_ms, this.#conduct.cutOffMs(performance.now())), signal);
    }
  }

  /**
   * Freezes the guest's file systems; returns how many. A frozen guest refuses file and exec commands.
   * After a rejection call {@link thaw}: the freeze may have been executed, or may still be.
   */
  async fsfreeze(timeout_ms: number): Promise<number> {
    this.#maybe_frozen = true;
    return asNumber(await this.execute('guest-fsfreeze-freeze', undefined, { timeout_ms }), 'freeze');
  }

  /** Thaws; returns how many file systems were frozen. Harmless if none was. */
  async thaw(options: AgentCallOptions = {}): Promise<number> {
    const count = asNumber(await this.execute('guest-fsfreeze-thaw', undefined, options), 'thaw');
    this.#maybe_frozen = false;
    return count;
  }

  async fsfreezeStatus(options: AgentCallOptions = {}): Promise<'thawed' | 'frozen'> {
    const status = await this.execute('guest-fsfreeze-status', undefined, options);
    if (status !== 'thawed' && status !== 'frozen') {
      throw new GuestAgentProtocolError('the guest agent answered an unknown freeze status');
    }
    this.#maybe_frozen = status === 'frozen';
    return status;
  }

  /**
   * Asks the guest to shut down. Success has no answer: watch QMP for SHUTDOWN or RESET. Rejects with
   * {@link GuestAgentError} when the guest refuses within half a second, or with what {@link execute} rejects.
   */
  async shutdown(mode: 'powerdown' | 'reboot' | 'halt', options: AgentCallOptions = {}): Promise<void> {
    const timeout_ms = options.timeout_ms ?? DEFAULT_TIMEOUT_MS;
    await this.#enqueue('guest-shutdown', timeout_ms, async (deadline) => {
      const channel = await this.#getInStep(deadline);
      const until = Math.min(deadline, performance.now() + SHUTDOWN_REFUSAL_MS);
      try {
        await this.#exchange(channel, 'guest-shutdown', { mode }, until);
      } catch (error) {
        const silent = error instanceof GuestAgentTimeoutError || error instanceof GuestAgentClosedError;
        if (!silent) throw error;
      }
    });
  }

  /** Sets the guest's clock, in nanoseconds since the epoch. A guest without a hardware clock is fine. */
  async setTime(time_ns: bigint, options: AgentCallOptions = {}): Promise<void> {
    try {
      await this.execute('guest-set-time', `{"time":${time_ns}}`, options);
    } catch (error) {
      // The system clock is set; only writing the hardware clock failed.
      if (!(error instanceof GuestAgentError && error.desc.includes('hwclock'))) throw error;
    }
  }

  /** Disconnects and refuses further calls. The guest keeps running. */
  close(): void {
    this.#closed = true;
    this.#channel?.destroy(new GuestAgentClosedError('this side closed the guest agent channel'));
  }

  #enqueue<T>(what: string, timeout_ms: number, run: (deadline: number) => Promise<T>): Promise<T> {
    const deadline = performance.now() + timeout_ms;
    const { promise, resolve, reject } = Promise.withResolvers<T>();
    const late = new GuestAgentTimeoutError(
      `${what}: not sent within ${timeout_ms} ms, an earlier call was slow`,
    );
    let given_up = false;
    const waiting = setTimeout(() => {
      given_up = true;
      reject(late);
    }, timeout_ms);
    const turn = this.#tail.then(async () => {
      clearTimeout(waiting);
      if (given_up || performance.now() >= deadline) throw late;
      if (this.#closed) throw new GuestAgentClosedError(`${what}: the guest agent client is closed`);
      if (this.is_cut_off)
        throw new GuestAgentCutOffError(`${what}: not sent, the guest agent has broken the protocol`);
      resolve(await this.#judged(run(deadline)));
    });
    this.#tail = turn.catch(reject);
    return promise;
  }

  async #judged<T>(exchange: Promise<T>): Promise<T> {
    const asked_at = performance.now();
    try {
      const answer = await exchange;
      this.#judge(() => this.#conduct.answered());
      return answer;
    } catch (error) {
      const now = performance.now();
      if (error instanceof GuestAgentError) this.#judge(() => this.#conduct.answered());
      if (error instanceof GuestAgentTimeoutError)
        this.#judge(() => this.#conduct.didNotAnswer(asked_at, now));
      if (error instanceof GuestAgentProtocolError) {
        this.#channel?.destroy(error);
        this.#judge(() => this.#conduct.brokeProtocol(now));
      }
      throw error;
    }
  }

  #judge(change: () => void): void {
    const before = this.is_silent;
    change();
    if (this.is_silent !== before) this.#changed();
  }

  async #getInStep(deadline: number): Promise<AgentChannel> {
    if (!this.#channel || this.#channel.closed) {
      this.#in_step = false;
      this.#channel = await openAgentChannel(this.#socket_path, deadline, this.#budget);
      if (this.#closed) this.close();
    }
    const channel = this.#channel;
    if (this.#in_step) return channel;
    const id = randomInt(1, 2 ** 31);
    channel.send(Buffer.concat([Buffer.of(0xff), Buffer.from(commandLine('guest-sync-delimited', { id }))]));
    for (;;) {
      const line = await channel.nextLine(deadline, 'guest-sync-delimited');
      const mark = line.lastIndexOf(0xff);
      if (mark === -1) continue;
      const reply = channel.parse(() => parseReply(line.subarray(mark + 1)));
      if (reply?.return === id) break;
    }
    this.#in_step = true;
    return channel;
  }

  async #exchange(
    channel: AgentChannel,
    command: string,
    args: Record<string, unknown> | string | undefined,
    deadline: number,
  ): Promise<unknown> {
    this.#in_step = false;
    channel.send(Buffer.from(commandLine(command, args)));
    const line = await channel.nextLine(deadline, command);
    const reply = channel.parse(() => parseReply(line));
    if (!reply) throw new GuestAgentProtocolError(`${command}: the guest's answer is not a reply`);
    this.#in_step = !channel.holds_more;
    if (reply.error) throw new GuestAgentError(command, reply.error.desc);
    return reply.return;
  }
}

function commandLine(command: string, args?: Record<string, unknown> | string): string {
  const text = typeof args === 'string' ? args : JSON.stringify(args ?? {});
  return `{"execute":${JSON.stringify(command)},"arguments":${text}}\n`;
}

function parseReply(line: Buffer): AgentReply | undefined {
  try {
    const value: unknown = JSON.parse(line.toString('utf8'));
    if (typeof value !== 'object' || value === null) return undefined;
    return 'return' in value || 'error' in value ? (value as AgentReply) : undefined;
  } catch {
    return undefined;
  }
}

function asNumber(value: unknown, what: string): number {
  if (typeof value !== 'number') throw new GuestAgentProtocolError(`${what}: the guest answered no number`);
  return value;
}

function rejectOnAbort(signal: AbortSignal): Promise<never> {
  return new Promise((_, reject) => {
    signal.addEventListener('abort', () => reject(signal.reason), { once: true });
  });
}
