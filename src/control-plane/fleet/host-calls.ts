/**
 * Calls hosts for API callers, who wait for the answer or the stream. A call is in the memory of the control plane that
 * has the caller's connection, because both end together. The call's id names this control plane.
 *
 *   waiting ── the host polls this control plane ────────────▶ taken ── answer, stream, or the end of the wait ──▶ gone
 *      └── another one, which the host polls, takes it ──▶ pulled ── the other has passed it on to the host ──▶ taken
 *
 * Invariants:
 * - An agent gets each call at most once, so a command never runs twice.
 * - Number and time of calls are bounded. After its caller has disconnected, nothing of a call is kept.
 * - A call fails if it stays `waiting` or `pulled` for 5 s, or if the host's agent falls silent (`HostSilence`).
 *   Streams end with this silence, too, except those of SSH and of ports, which wait as TCP does.
 */

import { randomUUID } from 'node:crypto';
import { EventEmitter } from 'node:events';
import type { Duplex } from 'node:stream';
import {
  CALLS_MAX,
  type CallAnswer,
  type HostCall,
  type PendingCall,
  RESULTS,
} from '../../protocol/host-calls.ts';
import { conforms } from '../../protocol/schemas.ts';
import { AppError, type ErrorCode, RETRY_LATER_S } from '../../shared/errors.ts';
import type { HostId } from '../../shared/ids.ts';
import { traceContext, traced } from '../../shared/tracing.ts';
import type { Db } from '../db/pool.ts';
import { HOST_FRESH_SECONDS, listSilent } from './host-store.ts';
import { askerOf, newCallId, noOthers, type OtherControlPlanes } from './peers.ts';

/** Two ticks are less than a call waits to be taken. */
const TICK_MS = 2_000;

export const STANDS_STILL = `The host's agent has given no sign of life for ${HOST_FRESH_SECONDS} s: it stands still, or is cut off.`;

export interface HostWatch {
  /** Calls `onSilent` once when the host falls silent, or at once if it is. Call the returned function when the wait is over. */
  watch(host_id: HostId, onSilent: () => void): () => void;
}

/** For a control plane without hosts. */
const NO_WATCH: HostWatch = { watch: () => () => undefined };

/**
 * Ends the waits for a host whose agent has sent no heartbeat for HOST_FRESH_SECONDS. It reads the last heartbeat from the
 * database, because the agent may be connected to another control plane. Work that takes long is no silence: heartbeats go
 * on. Invariant: one query a tick for all hosts that somebody waits for, and none while nobody does.
 */
export class HostSilence implements HostWatch {
  readonly #db: Db;
  readonly #tick_ms: number;
  readonly #watched = new Map<HostId, Set<() => void>>();
  /**
   * Silent at the last tick. One tick is not enough: this process, or the database, may have stood still itself, and then the
   * heartbeats come a moment later.
   */
  #suspected: ReadonlySet<HostId> = new Set();
  #timer: NodeJS.Timeout | undefined;
  #asking = false;

  constructor(db: Db, tick_ms = TICK_MS) {
    this.#db = db;
    this.#tick_ms = tick_ms;
  }

  watch(host_id: HostId, onSilent: () => void): () => void {
    const waits = this.#watched.get(host_id) ?? new Set();
    this.#watched.set(host_id, waits);
    // Two waits may give the same function.
    const tell = () => onSilent();
    waits.add(tell);
    this.#timer ??= setInterval(() => void this.#tick(), this.#tick_ms).unref();
    return () => {
      waits.delete(tell);
      if (waits.size === 0 && this.#watched.get(host_id) === waits) this.#watched.delete(host_id);
      if (this.#watched.size > 0) return;
      clearInterval(this.#timer);
      this.#timer = undefined;
      this.#suspected = new Set();
    };
  }

  async #tick(): Promise<void> {
    if (this.#asking) return;
    this.#asking = true;
    try {
      const silent = await listSilent(this.#db, [...this.#watched.keys()]);
      for (const id of silent) {
        if (!this.#suspected.has(id)) continue;
        for (const tell of [...(this.#watched.get(id) ?? [])]) tell();
      }
      this.#suspected = new Set(silent);
    } catch {
      // Without the database nothing is known of the hosts.
      this.#suspected = new Set();
    } finally {
      this.#asking = false;
    }
  }
}

/** A connected agent takes a call at once. */
const TAKEN_WITHIN_MS = 5_000;
/** Hints to the others may be lost. */
const TELL_EVERY_MS = 1_000;
/**
 * Per kind, so that long commands do not block SSH, consoles and metrics; and per instance, so that a guest which answers late
 * does not block the others of its host.
 */
const CALLS_AN_INSTANCE = 256;
/** About how much one poll returns; the next poll, which follows at once, takes the rest. */
const TAKEN_BYTES = 8 * 1024 * 1024;

/** The peers of TCP end one direction before the other. Any other stream is over once its host has ended its side. */
const HALF_OPEN: ReadonlySet<HostCall['kind']> = new Set(['ssh', 'port']);

const NOT_TAKEN = {
  waiting: 'The host does not answer; it may be restarting. Nothing was begun.',
  pulled:
    'The control plane that the host is connected to took the call and then stopped. It may have been carried out.',
};

interface Waiting {
  readonly host_id: HostId;
  readonly pending: PendingCall;
  state: 'waiting' | 'pulled' | 'taken';
  /** Fails it unless it is taken. */
  readonly patience: NodeJS.Timeout;
  readonly answer: (answer: CallAnswer) => void;
  readonly connect: ((stream: Duplex) => void) | null;
}

interface Asked {
  readonly host_id: HostId;
  readonly call: HostCall;
  readonly timeout_ms: number;
  readonly signal: AbortSignal;
}

/** What an answer and a stream do with a wait. */
type Ends<T> = (
  resolve: (value: T) => void,
  reject: (error: AppError) => void,
) => {
  readonly answered: (result: unknown) => void;
  readonly connect: ((stream: Duplex) => void) | null;
};

const CODES: Record<string, ErrorCode> = {
  not_running: 'VM_NOT_RUNNING',
  busy: 'RATE_LIMITED',
  not_listening: 'BAD_GATEWAY',
  gone: 'CONFLICT',
};

/** The host has not got the call. */
export class NotBegunError extends AppError {
  constructor(message: string, retry_after_seconds: number) {
    super('UNAVAILABLE', { message, retry_after_seconds });
  }
}

export class HostCalls {
  readonly #waiting = new Map<string, Waiting>();
  /** Emits the id of a host that has a new call, here or at another control plane. */
  readonly #added = new EventEmitter().setMaxListeners(0);
  readonly #closing = new AbortController();
  readonly #others: OtherControlPlanes;
  readonly #hosts: HostWatch;

  constructor(others: OtherControlPlanes = noOthers(), hosts: HostWatch = NO_WATCH) {
    this.#others = others;
    this.#hosts = hosts;
    others.onTold((host_id) => this.#added.emit(host_id));
  }

  /** The agent's answer. @throws AppError VM_NOT_RUNNING, RATE_LIMITED, UNAVAILABLE */
  ask<T>(host_id: HostId, call: HostCall, timeout_ms: number, signal: AbortSignal): Promise<T> {
    return this.#wait<T>({ host_id, call, timeout_ms, signal }, (resolve) => ({
      answered: (result) => resolve(result as T),
      connect: null,
    }));
  }

  /** The stream that the agent opens; it closes with its agent, and the caller must end it. @throws as {@link ask} */
  async open(host_id: HostId, call: HostCall, timeout_ms: number, signal: AbortSignal): Promise<Duplex> {
    const stream = await this.#wait<Duplex>({ host_id, call, timeout_ms, signal }, (resolve, reject) => ({
      answered: () => reject(unavailable('The host gave no stream.')),
      connect: resolve,
    }));
    if (HALF_OPEN.has(call.kind)) return stream;
    // A socket of an HTTP server stays half open by itself, also when the agent at its other end was killed.
    stream.once('end', () => stream.destroy());
    const unwatch = this.#hosts.watch(host_id, () => stream.destroy());
    stream.once('close', unwatch);
    if (stream.destroyed) unwatch();
    return stream;
  }

  /** Long poll of a host's agent: its waiting calls, here or elsewhere, or none after `hold_ms`. */
  async take(host_id: HostId, hold_ms: number, signal: AbortSignal): Promise<PendingCall[]> {
    const ended = AbortSignal.any([signal, this.#closing.signal, AbortSignal.timeout(hold_ms)]);
    let woken = false;
    let wake = () => {};
    const added = () => {
      woken = true;
      wake();
    };
    this.#added.on(host_id, added);
    ended.addEventListener('abort', added);
    try {
      for (;;) {
        woken = false;
        // A disconnected agent gets nothing: its next poll takes the calls.
        if (signal.aborted) return [];
        const mine = this.pick(host_id, 'taken');
        if (mine.length > 0 || ended.aborted) return mine;
        const theirs = await this.#others.take(host_id);
        if (theirs.length > 0) return theirs;
        if (woken || ended.aborted) continue;
        await new Promise<void>((resolve) => {
          wake = resolve;
        });
      }
    } finally {
      this.#added.off(host_id, added);
      ended.removeEventListener('abort', added);
    }
  }

  /** The host got these calls, as {@link take} returned them. */
  async passed(host_id: HostId, calls: readonly PendingCall[]): Promise<void> {
    const theirs = calls.filter(({ id }) => !this.#isOurs(id)).map(({ id }) => id);
    if (theirs.length > 0) await this.#others.confirm(host_id, theirs);
  }

  /** The calls that wait here, as many as fit into an answer. */
  pick(host_id: HostId, state: 'pulled' | 'taken'): PendingCall[] {
    const found: PendingCall[] = [];
    let bytes = 0;
    for (const each of this.#waiting.values()) {
      if (each.host_id !== host_id || each.state !== 'waiting') continue;
      bytes += sizeOf(each.pending.call);
      if (found.length === CALLS_MAX || (found.length > 0 && bytes > TAKEN_BYTES)) break;
      each.state = state;
      if (state === 'pulled') each.patience.refresh();
      found.push(each.pending);
    }
    return found;
  }

  /** Another control plane has passed these calls on to the host. */
  confirm(host_id: HostId, call_ids: readonly string[]): void {
    for (const id of call_ids) {
      const waiting = this.#waiting.get(id);
      if (waiting?.host_id === host_id) waiting.state = 'taken';
    }
  }

  /** The host's agent was restarted: it will not answer calls that it had taken. */
  failTaken(host_id: HostId): void {
    for (const each of this.#waiting.values()) {
      if (each.host_id !== host_id || each.state === 'waiting') continue;
      each.answer({ error: { code: 'failed', message: 'The host agent was restarted meanwhile.' } });
    }
  }

  /** The same, for the calls of all control planes. */
  async failAllTaken(host_id: HostId): Promise<void> {
    this.failTaken(host_id);
    await this.#others.failTaken(host_id);
  }

  /** False when its caller no longer waits. */
  async answer(host_id: HostId, id: string, answer: CallAnswer): Promise<boolean> {
    if (!this.#isOurs(id)) return this.#others.answer(host_id, id, answer);
    return this.answerOurs(host_id, id, answer);
  }

  answerOurs(host_id: HostId, id: string, answer: CallAnswer): boolean {
    const waiting = this.#waiting.get(id);
    if (waiting?.host_id !== host_id) return false;
    waiting.answer(answer);
    return true;
  }

  /** The same with a stream, which `accept` begins. */
  async connect(host_id: HostId, id: string, accept: () => Duplex): Promise<boolean> {
    if (!this.#isOurs(id)) return this.#others.connect(host_id, id, accept);
    return this.connectOurs(host_id, id, accept);
  }

  connectOurs(host_id: HostId, id: string, accept: () => Duplex): boolean {
    const waiting = this.#waiting.get(id);
    if (waiting?.host_id !== host_id || !waiting.connect) return false;
    waiting.connect(accept());
    return true;
  }

  /** For waits that are no calls. As {@link HostWatch.watch}. */
  watch(host_id: HostId, onSilent: () => void): () => void {
    return this.#hosts.watch(host_id, onSilent);
  }

  close(): void {
    this.#closing.abort();
  }

  #isOurs(call_id: string): boolean {
    return askerOf(call_id) === this.#others.id;
  }

  #wait<T>(asked: Asked, ends: Ends<T>): Promise<T> {
    const { host_id, call } = asked;
    const attributes = {
      'berth.host_id': host_id,
      'berth.instance_id': instanceOf(call),
    };
    return traced(`call host ${call.kind}`, attributes, () => this.#waitInSpan(asked, ends), 'client');
  }

  async #waitInSpan<T>({ host_id, call, timeout_ms, signal }: Asked, ends: Ends<T>): Promise<T> {
    let alike = 0;
    for (const each of this.#waiting.values())
      if (each.host_id === host_id && isAlike(each.pending.call, call)) alike += 1;
    if (alike >= CALLS_AN_INSTANCE) throw unavailable('There are too many calls of this kind under way.');
    const { promise, resolve, reject } = Promise.withResolvers<T>();
    const { answered, connect } = ends(resolve, reject);
    const id = newCallId(this.#others.id, randomUUID());
    const patience = setTimeout(() => {
      if (waiting.state === 'waiting') reject(new NotBegunError(NOT_TAKEN.waiting, 5));
      if (waiting.state === 'pulled') reject(unavailable(NOT_TAKEN.pulled));
    }, TAKEN_WITHIN_MS);
    const trace_context = traceContext();
    const waiting: Waiting = {
      host_id,
      pending: { id, call, ...(trace_context ? { trace_context } : {}) },
      state: 'waiting',
      patience,
      answer: ({ error, result }) => {
        if (error) reject(failure(error));
        else if (conforms(RESULTS[call.kind], result)) answered(result);
        else reject(unavailable('The answer of the host was malformed.'));
      },
      connect,
    };
    this.#waiting.set(id, waiting);
    const stopTelling = this.#announce(waiting);
    const unwatch = this.#hosts.watch(host_id, () => {
      if (waiting.state === 'waiting')
        reject(new NotBegunError(`${STANDS_STILL} Nothing was begun.`, RETRY_LATER_S));
      else reject(standsStill('What it has begun may still be done.'));
    });
    const over = AbortSignal.any([signal, this.#closing.signal, AbortSignal.timeout(timeout_ms)]);
    const giveUp = () => reject(unavailable('The host did not answer in time.'));
    over.addEventListener('abort', giveUp);
    if (over.aborted) giveUp();
    try {
      return await promise;
    } finally {
      clearTimeout(patience);
      unwatch();
      stopTelling();
      over.removeEventListener('abort', giveUp);
      this.#waiting.delete(id);
    }
  }

  /** Wakes the host's poll here; if that does not take the call, the others are told. Returns the function that ends it. */
  #announce(waiting: Waiting): () => void {
    this.#added.emit(waiting.host_id);
    const tell = () => {
      if (waiting.state === 'waiting') this.#others.tell(waiting.host_id);
      else clearInterval(telling);
    };
    const telling = setInterval(tell, TELL_EVERY_MS);
    const first = setImmediate(tell);
    return () => {
      clearImmediate(first);
      clearInterval(telling);
    };
  }
}

/** Of the same kind, and to the same instance if it is a call to one. */
function isAlike(one: HostCall, other: HostCall): boolean {
  return one.kind === other.kind && instanceOf(one) === instanceOf(other);
}

function instanceOf(call: HostCall): string | null {
  return 'instance_id' in call ? call.instance_id : null;
}

function sizeOf(call: HostCall): number {
  const sum = (words: readonly string[]) => words.reduce((bytes, each) => bytes + each.length, 0);
  if (call.kind === 'exec') return sum(call.command) + call.stdin.length;
  if (call.kind === 'exec_start') return sum(call.command) + sum(call.environment);
  return call.kind === 'exec_control' && call.action.kind === 'input' ? call.action.data.length : 0;
}

function failure({ code, message }: { code: string; message: string }): AppError {
  const known = Object.hasOwn(CODES, code) ? CODES[code] : undefined;
  return known === undefined
    ? unavailable(message)
    : new AppError(known, { message, ...(code === 'busy' ? { retry_after_seconds: 1 } : {}) });
}

function unavailable(message: string): AppError {
  return new AppError('UNAVAILABLE', { message, retry_after_seconds: 5 });
}

/** `begun`: what is known of the work. */
export function standsStill(begun: string): AppError {
  return new AppError('UNAVAILABLE', {
    message: `${STANDS_STILL} ${begun}`,
    retry_after_seconds: RETRY_LATER_S,
  });
}
