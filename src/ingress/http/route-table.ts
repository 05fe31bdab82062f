/**
 * The hostnames of all HTTP ports. It follows the control plane by long poll, and keeps the last routes while that is unreachable.
 * A request for an unknown hostname reads the routes again, because the API may have reported a new port before they arrived.
 */
import type { ControlPlaneClient } from '../../agent-api/client.ts';
import type { HttpRoute } from '../../agent-api/http-port-types.ts';
import { backoffMs, pause } from '../../lib/backoff.ts';
import { messageOf } from '../../lib/errors.ts';
import type { Log } from '../../lib/log.ts';

const REFRESH_MS = 1_000;
const REFRESH_GAP_MS = 50;
/** The pause after a refresh, as a multiple of its duration: requests for unknown hostnames cost a bounded share of the time. */
const REFRESH_REST = 4;

export class RouteTable {
  readonly #client: Pick<ControlPlaneClient, 'httpRoutes'>;
  readonly #log: Log;
  readonly #changed: (routes: readonly HttpRoute[]) => void;
  #by_hostname = new Map<string, HttpRoute>();
  #seen: string | null = null;
  #polling = new AbortController();
  #answers = 0;
  #rest: Promise<unknown> = Promise.resolve();
  #next_refresh: Promise<void> | null = null;

  constructor(
    client: Pick<ControlPlaneClient, 'httpRoutes'>,
    log: Log,
    changed: (routes: readonly HttpRoute[]) => void,
  ) {
    this.#client = client;
    this.#log = log;
    this.#changed = changed;
  }

  find(hostname: string): HttpRoute | undefined {
    return this.#by_hostname.get(hostname);
  }

  async run(signal: AbortSignal): Promise<void> {
    for (let failures = 0; !signal.aborted; ) {
      const polling = new AbortController();
      this.#polling = polling;
      try {
        const either = AbortSignal.any([signal, polling.signal]);
        const { routes, etag } = await this.#client.httpRoutes({ seen: this.#seen }, either);
        failures = 0;
        this.apply(routes, etag);
      } catch (error) {
        if (polling.signal.aborted) continue;
        if (failures === 6)
          this.#log.warn(
            { reason: messageOf(error) },
            'the routes of HTTP ports cannot be read; the last stay',
          );
        await pause(backoffMs(failures++, 100, 2_000), signal);
      }
    }
  }

  apply(routes: readonly HttpRoute[], etag: string | null): void {
    this.#answers += 1;
    this.#seen = etag;
    this.#by_hostname = new Map(
      routes.flatMap((route) => route.hostnames.map((name) => [name, route] as const)),
    );
    this.#changed(routes);
  }

  /** Resolves when the routes have been read after this call, or could not be. Callers share a reading. */
  refresh(): Promise<void> {
    this.#next_refresh ??= this.#refreshAfterRest();
    return this.#next_refresh;
  }

  async #refreshAfterRest(): Promise<void> {
    await this.#rest;
    this.#next_refresh = null;
    const began_ms = performance.now();
    const reading = this.#read();
    this.#rest = reading.then(() =>
      pause(Math.max(REFRESH_GAP_MS, REFRESH_REST * (performance.now() - began_ms))),
    );
    await reading;
  }

  async #read(): Promise<void> {
    try {
      for (;;) {
        const before = this.#answers;
        const answer = await this.#client.httpRoutes({ seen: null }, AbortSignal.timeout(REFRESH_MS));
        // A poll was answered meanwhile, and may be newer than this.
        if (this.#answers !== before) continue;
        const polled = this.#seen;
        this.apply(answer.routes, answer.etag);
        // The poll under way waits for a change from the older routes.
        if (answer.etag !== polled) this.#polling.abort();
        return;
      }
    } catch {
      // The control plane is unreachable: the last routes stay in use.
    }
  }
}
