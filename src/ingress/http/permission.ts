/**
 * Whether a client may use a private port. The control plane decides; an answer is kept for two seconds. Without an answer nobody
 * is let in, and open connections end five seconds after the last one.
 */
import { hash } from 'node:crypto';
import type { ControlPlaneClient } from '../../protocol/client.ts';
import type { AuthoriseHttpResponse, HttpRoute } from '../../protocol/ingress-types.ts';
import type { Credential } from './fields.ts';
import type { HttpLimits } from './limits.ts';
import { notFound, Refusal, unauthenticated, unavailable } from './refusal.ts';

const KEPT_MAX = 20_000;

export interface Asking {
  readonly hostname: string;
  readonly address: string;
  readonly credential: Credential;
}

interface Kept {
  readonly answer: Promise<AuthoriseHttpResponse>;
  readonly asked_ms: number;
}

export class Permissions {
  readonly #client: Pick<ControlPlaneClient, 'authoriseHttp'>;
  readonly #limits: HttpLimits;
  readonly #kept = new Map<string, Kept>();

  constructor(client: Pick<ControlPlaneClient, 'authoriseHttp'>, limits: HttpLimits) {
    this.#client = client;
    this.#limits = limits;
  }

  /** How the client was let in. @throws Refusal 401, 403, 404, 503 */
  async require(route: HttpRoute, asking: Asking): Promise<'bearer' | 'cookie' | 'public'> {
    if (route.access === 'public') return 'public';
    const { bearer, cookie } = asking.credential;
    if (bearer === null && cookie === null) throw unauthenticated();
    const answer = await this.#ask(route, asking, this.#limits.permission_ms).catch(() => {
      throw unavailable('Berth cannot check your access at the moment. Try again shortly.');
    });
    if (answer.outcome === 'allowed') return answer.by;
    if (answer.outcome === 'unauthenticated') throw unauthenticated();
    if (answer.outcome === 'unknown') throw notFound();
    throw new Refusal(403, 'FORBIDDEN', 'Your credential does not have access to this port.');
  }

  /** For a connection that stays open. Null: the control plane does not answer. */
  async isAllowed(route: HttpRoute, asking: Asking): Promise<boolean | null> {
    if (route.access === 'public') return true;
    const { bearer, cookie } = asking.credential;
    if (bearer === null && cookie === null) return false;
    try {
      const { outcome } = await this.#ask(route, asking, this.#limits.permission_ms / 2);
      return outcome === 'allowed';
    } catch {
      return null;
    }
  }

  #ask(route: HttpRoute, asking: Asking, kept_ms: number): Promise<AuthoriseHttpResponse> {
    const { hostname, address, credential } = asking;
    const request = { port_id: route.port_id, hostname, address, ...credential };
    const key = hash('sha256', JSON.stringify(request));
    const now_ms = performance.now();
    const kept = this.#kept.get(key);
    if (kept && now_ms - kept.asked_ms < kept_ms) return kept.answer;
    const answer = this.#client.authoriseHttp(request);
    this.#kept.delete(key);
    this.#kept.set(key, { answer, asked_ms: now_ms });
    answer.catch(() => this.#kept.delete(key));
    this.#dropOld(now_ms);
    return answer;
  }

  /** Oldest first. */
  #dropOld(now_ms: number): void {
    for (const [key, { asked_ms }] of this.#kept) {
      if (this.#kept.size <= KEPT_MAX && now_ms - asked_ms < this.#limits.permission_ms) return;
      this.#kept.delete(key);
    }
  }
}
