/**
 * The client of a QEMU guest agent, over its chardev's unix socket (docs/interop/qemu-ga-ref in QEMU's tree).
 *
 * Invariants:
 * - one command at a time, in the order of the calls;
 * - the channel is in step before a command is sent: after a connect, and after a command without a reply,
 *   `guest-sync-delimited` comes first. Its leading 0xFF resets the agent's parser; everything before the 0xFF of its answer is dropped;
 * - nothing the guest sends is trusted: lines are bounded, and replies are checked where they are used;
 * - one deadline per call. An agent that breaks the protocol is disconnected and cut off for a while (agent-conduct.ts).
 */
import { randomInt } from 'node:crypto';
import { pause } from '../../shared/backoff.ts';
import { type AgentChannel, agentBudget, openAgentChannel } from './agent-channel.ts';
import { AgentConduct } from './agent-conduct.ts';
import {
  GuestAgentClosedError,
  GuestAgentCutOffError,
  GuestAgentError,
  GuestAgentProtocolError,
  GuestAgentTimeoutError,
} from './agent-errors.ts';

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
