/**
 * Keeps the ingress's routes of one kind (SSH addresses or HTTP ports) up to date by long polls to the control plane.
 * Answers are applied one after the other. While the control plane is unreachable, the last routes stay in use.
 *
 * Before the ingress turns a connection away, it calls `refresh`, which asks the control plane at once. The API may
 * have told the client of a change that the poll has not delivered yet.
 */
import type { RoutesRequest } from '../protocol/ingress-types.ts';
import { messageOf } from '../shared/errors.ts';
import type { InstanceId } from '../shared/ids.ts';
import type { Log } from '../shared/log.ts';
import { backoffMs, pause } from '../shared/retry.ts';

/** The log says so after this many failures in a row: about 5 s, and 30 s at a start, when the control plane starts as well. */
const FAILURES = 6;
const FAILURES_AT_START = 20;
const REFRESH_MS = 1_000;
const REFRESH_GAP_MS = 50;
/** The pause after a refresh, as a multiple of its duration: connections to closed ports cost a bounded share of the time. */
const REFRESH_REST = 4;

/** The routes of these instances are replaced; `changed` null: of all instances. */
export interface RouteChange<Route> {
  readonly changed: readonly InstanceId[] | null;
  readonly routes: readonly Route[];
}

type Asked = Omit<RoutesRequest, 'blocked'>;
interface Answer<Route> {
  readonly etag: string | null;
  readonly changed?: readonly InstanceId[];
  readonly routes: readonly Route[];
}

export interface RouteSource<Route> {
  /** Asks the control plane. */
  readonly ask: (asked: Asked, signal: AbortSignal) => Promise<Answer<Route>>;
  readonly apply: (change: RouteChange<Route>) => Promise<void> | void;
  readonly log: Log;
}

export class RouteFollower<Route> {
  readonly #source: RouteSource<Route>;
  readonly #closing = new AbortController();
  #seen: string | null = null;
  /** Serialises the application of answers. */
  #applying: Promise<void> = Promise.resolve();
  /** How many answers were applied or queued. */
  #answers = 0;
  /** Resolves when the next refresh may begin. */
  #rest: Promise<unknown> = Promise.resolve();
  #next_refresh: Promise<void> | null = null;

  constructor(source: RouteSource<Route>) {
    this.#source = source;
  }

  /** Until `signal` aborts. */
  async run(signal: AbortSignal): Promise<void> {
    const { ask, log } = this.#source;
    for (let failures = 0; !signal.aborted; ) {
      try {
        const answer = await ask({ seen: this.#seen }, signal);
        failures = 0;
        await this.apply(answer);
      } catch (error) {
        if (failures === (this.#seen === null ? FAILURES_AT_START : FAILURES))
          log.warn(
            { reason: messageOf(error) },
            'the control plane is unreachable; the last routes stay in use',
          );
        await pause(backoffMs(failures++, 100, 2_000), signal);
      }
    }
    this.#closing.abort();
  }

  /** Applies an answer, after all earlier ones. */
  apply({ etag, changed, routes }: Answer<Route>): Promise<void> {
    this.#answers += 1;
    return this.inTurn(async () => {
      await this.#source.apply({ changed: changed ?? null, routes });
      this.#seen = etag;
    });
  }

  /** Does `work` while no answer is applied. */
  inTurn(work: () => Promise<void>): Promise<void> {
    const turn = this.#applying.then(work);
    this.#applying = turn.catch(() => undefined);
    return turn;
  }

  /** Resolves when the routes are as the control plane knew them after this call, or could not be read. Callers share a reading. */
  refresh(): Promise<void> {
    this.#next_refresh ??= this.#refreshAfterRest();
    return this.#next_refresh;
  }

  async #refreshAfterRest(): Promise<void> {
    await this.#rest;
    this.#next_refresh = null;
    const began_ms = performance.now();
    const reading = this.#read();
    this.#rest = reading.then(() => {
      const rest_ms = Math.max(REFRESH_GAP_MS, REFRESH_REST * (performance.now() - began_ms));
      return pause(rest_ms, this.#closing.signal);
    });
    await reading;
  }

  async #read(): Promise<void> {
    const bounded = AbortSignal.any([this.#closing.signal, AbortSignal.timeout(REFRESH_MS)]);
    try {
      for (;;) {
        const before = this.#answers;
        const asked = { seen: this.#seen, at_once: true };
        const answer = await this.#source.ask(asked, bounded);
        // A poll was answered meanwhile, and may be newer than this.
        if (this.#answers !== before) continue;
        await this.apply(answer);
        return;
      }
    } catch {
      // The control plane is unreachable: the last routes stay in use.
    }
  }
}
