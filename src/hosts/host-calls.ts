/**
 * Calls to a host that an API caller waits for. They are in memory, because they end with their caller's connection.
 * Invariants: each call goes to its agent once, so a command never runs twice; number and time are bounded; nothing of a
 * call is kept after its caller has disconnected.
 */
import { randomUUID } from 'node:crypto';
import { EventEmitter } from 'node:events';
import type { Duplex } from 'node:stream';
import { fits } from '../agent-api/check.ts';
import {
  CALL_SINCE,
  type CallAnswer,
  type HostCall,
  type PendingCall,
  RESULTS,
} from '../agent-api/host-calls.ts';
import { AGENT_PROTOCOL } from '../agent-api/protocol.ts';
import { AppError, type ErrorCode } from '../lib/errors.ts';
import type { HostId } from '../lib/ids.ts';

/** A connected agent takes a call at once. */
const TAKEN_WITHIN_MS = 5_000;
/** Per kind, so that long commands do not block SSH, consoles and metrics. */
const CALLS_A_HOST = 256;
/** About how much one poll returns; the next poll, which follows at once, takes the rest. */
const TAKEN_BYTES = 8 * 1024 * 1024;

const TOO_OLD = "The VM's host runs an older Berth, which cannot do this. Upgrade Berth on the host.";

interface Waiting {
  readonly host_id: HostId;
  readonly pending: PendingCall;
  taken: boolean;
  readonly answer: (answer: CallAnswer) => void;
  readonly connect: ((stream: Duplex) => void) | null;
}

const CODES: Record<string, ErrorCode> = {
  not_running: 'VM_NOT_RUNNING',
  busy: 'RATE_LIMITED',
  not_listening: 'BAD_GATEWAY',
  gone: 'CONFLICT',
};

export class HostCalls {
  readonly #waiting = new Map<string, Waiting>();
  /** Emits the id of a host that has a new call. */
  readonly #added = new EventEmitter().setMaxListeners(0);
  readonly #closing = new AbortController();

  /** The agent's answer. @throws AppError VM_NOT_RUNNING, RATE_LIMITED, UNAVAILABLE */
  ask<T>(host_id: HostId, call: HostCall, timeout_ms: number, signal: AbortSignal): Promise<T> {
    return this.#wait<T>({ host_id, call, timeout_ms, signal }, (resolve) => ({
      answered: (result) => resolve(result as T),
      connect: null,
    }));
  }

  /** The stream that the agent opens; the caller must end it. @throws as {@link ask} */
  open(host_id: HostId, call: HostCall, timeout_ms: number, signal: AbortSignal): Promise<Duplex> {
    return this.#wait<Duplex>({ host_id, call, timeout_ms, signal }, (resolve, reject) => ({
      answered: () => reject(unavailable('The host gave no stream.')),
      connect: resolve,
    }));
  }

  /** Long poll of a host's agent: its waiting calls, or none after `hold_ms`. Those that its version does not know fail. */
  async take(
    host_id: HostId,
    hold_ms: number,
    signal: AbortSignal,
    protocol: number = AGENT_PROTOCOL,
  ): Promise<PendingCall[]> {
    const ended = AbortSignal.any([signal, this.#closing.signal, AbortSignal.timeout(hold_ms)]);
    const isKnown = ({ pending: { call }, answer }: Waiting) => {
      const known = (CALL_SINCE[call.kind] ?? 0) <= protocol;
      if (!known) answer({ error: { code: 'failed', message: TOO_OLD } });
      return known;
    };
    const mine = () =>
      [...this.#waiting.values()].filter((each) => each.host_id === host_id && !each.taken && isKnown(each));
    if (mine().length === 0 && !ended.aborted) {
      await new Promise<void>((resolve) => {
        const done = () => {
          this.#added.off(host_id, done);
          ended.removeEventListener('abort', done);
          resolve();
        };
        this.#added.on(host_id, done);
        ended.addEventListener('abort', done);
      });
    }
    // A disconnected agent gets nothing: its next poll takes the calls.
    if (signal.aborted) return [];
    const found: PendingCall[] = [];
    let bytes = 0;
    for (const each of mine()) {
      bytes += sizeOf(each.pending.call);
      if (found.length > 0 && bytes > TAKEN_BYTES) break;
      each.taken = true;
      found.push(each.pending);
    }
    return found;
  }

  /** The host's agent was restarted: it will not answer calls that it had taken. */
  failTaken(host_id: HostId): void {
    for (const each of this.#waiting.values()) {
      if (each.host_id !== host_id || !each.taken) continue;
      each.answer({ error: { code: 'failed', message: 'The host agent was restarted meanwhile.' } });
    }
  }

  /** False when its caller no longer waits. */
  answer(host_id: HostId, id: string, answer: CallAnswer): boolean {
    const waiting = this.#waiting.get(id);
    if (waiting?.host_id !== host_id) return false;
    waiting.answer(answer);
    return true;
  }

  /** The same with a stream. */
  connect(host_id: HostId, id: string, stream: Duplex): boolean {
    const waiting = this.#waiting.get(id);
    if (waiting?.host_id !== host_id || !waiting.connect) return false;
    waiting.connect(stream);
    return true;
  }

  close(): void {
    this.#closing.abort();
  }

  async #wait<T>(
    asked: { host_id: HostId; call: HostCall; timeout_ms: number; signal: AbortSignal },
    ends: (
      resolve: (value: T) => void,
      reject: (error: AppError) => void,
    ) => { answered: (result: unknown) => void; connect: ((stream: Duplex) => void) | null },
  ): Promise<T> {
    const { host_id, call, timeout_ms, signal } = asked;
    const same_kind = [...this.#waiting.values()].filter(
      (each) => each.host_id === host_id && each.pending.call.kind === call.kind,
    );
    if (same_kind.length >= CALLS_A_HOST) throw unavailable('The host has too many calls under way.');
    const { promise, resolve, reject } = Promise.withResolvers<T>();
    const { answered, connect } = ends(resolve, reject);
    const id = randomUUID();
    const waiting: Waiting = {
      host_id,
      pending: { id, call },
      taken: false,
      answer: ({ error, result }) => {
        if (error) reject(failure(error));
        else if (fits(RESULTS[call.kind], result)) answered(result);
        else reject(unavailable('The answer of the host was malformed.'));
      },
      connect,
    };
    this.#waiting.set(id, waiting);
    this.#added.emit(host_id);
    const not_taken = setTimeout(() => {
      if (!waiting.taken) reject(unavailable('The host does not answer; it may be restarting.'));
    }, TAKEN_WITHIN_MS);
    const over = AbortSignal.any([signal, this.#closing.signal, AbortSignal.timeout(timeout_ms)]);
    const giveUp = () => reject(unavailable('The host did not answer in time.'));
    over.addEventListener('abort', giveUp);
    if (over.aborted) giveUp();
    try {
      return await promise;
    } finally {
      clearTimeout(not_taken);
      over.removeEventListener('abort', giveUp);
      this.#waiting.delete(id);
    }
  }
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
