/**
 * One way of a browser to the provider and back. What it must remember is in a cookie, encrypted and authenticated with a
 * key of the server, so that only the browser that has begun can come back, and the server stores nothing.
 */
import { randomBytes } from 'node:crypto';
import type { SessionId, UserId } from '../../../shared/ids.ts';
import { Sealer } from '../../../shared/seal.ts';
import type { FlowSecrets } from './provider.ts';

export const FLOW_LIFETIME_S = 600;

export interface Flow extends FlowSecrets {
  /** The session that asks for sudo; null: a login. */
  readonly sudo: { readonly session_id: SessionId; readonly user_id: UserId } | null;
  /** A path of the console. */
  readonly return_to: string;
  /** In seconds since the epoch. */
  readonly began_at: number;
}

const random = () => randomBytes(32).toString('base64url');
const nowS = () => Math.floor(Date.now() / 1000);

export function newFlow(sudo: Flow['sudo'], return_to: string): Flow {
  return { state: random(), nonce: random(), verifier: random(), sudo, return_to, began_at: nowS() };
}

export class Flows {
  readonly #sealer: Sealer;

  constructor(root_key: Uint8Array) {
    this.#sealer = new Sealer(root_key, 'berth oidc flows v1');
  }

  seal(flow: Flow): string {
    return this.#sealer.seal(JSON.stringify(flow), 'flow').toString('base64url');
  }

  /** Null: the cookie is not ours, or too old. */
  open(cookie: string): Flow | null {
    const text = this.#sealer.open(Buffer.from(cookie, 'base64url'), 'flow');
    if (text === null) return null;
    const flow = JSON.parse(text) as Flow;
    return nowS() - flow.began_at > FLOW_LIFETIME_S ? null : flow;
  }
}

/** A path of our own console, from a query; everything else becomes `/`. */
export function ownPath(text: string | undefined, public_url: string): string {
  if (text === undefined || !/^\/[\w\-./~%@:+]*(\?[\w\-./~%@:+&=]*)?$/.test(text)) return '/';
  const url = URL.parse(text, public_url);
  if (url?.origin !== new URL(public_url).origin) return '/';
  // Without `..`, which the parser has removed: `/..//evil.test` would lead to another site.
  const path = url.pathname + url.search;
  return /^\/(\/|v1(\/|$))/.test(path) ? '/' : path;
}
