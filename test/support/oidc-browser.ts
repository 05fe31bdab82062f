/**
 * Plays a browser between Berth and the OpenID provider: it follows redirects and keeps cookies for each of them, but
 * runs no page of the console.
 */
import assert from 'node:assert/strict';
import { REFRESH_COOKIE } from '../../src/control-plane/http/cookies.ts';
import type { TestApi } from './api.ts';

export interface Page {
  readonly status: number;
  /** The address without the origin. */
  readonly place: string;
  readonly origin: string;
  /** The value of each cookie that this answer has set, with its attributes. */
  readonly set_cookies: readonly string[];
  readonly text: string;
}

export class OidcBrowser {
  readonly #api: TestApi;
  readonly #jars = new Map<string, Map<string, string>>();

  constructor(api: TestApi) {
    this.#api = api;
  }

  /** One request, without following its redirect. */
  async ask(address: string, form?: Record<string, string>): Promise<Page & { readonly to: string | null }> {
    const { public_url } = this.#api.context;
    const url = new URL(address, public_url);
    const jar = this.#jars.get(url.origin) ?? new Map<string, string>();
    this.#jars.set(url.origin, jar);
    // The API listens at another port than its public URL says.
    const is_ours = url.origin === public_url;
    const asked = is_ours ? this.#api.origin + url.pathname + url.search : url.href;
    const response = await fetch(asked, {
      redirect: 'manual',
      headers: { cookie: [...jar].map(([name, value]) => `${name}=${value}`).join('; ') },
      ...(form ? { method: 'POST', body: new URLSearchParams(form) } : {}),
    });
    const set_cookies = response.headers.getSetCookie();
    for (const cookie of set_cookies) {
      const [, name = '', value = ''] = /^([^=]+)=([^;]*)/.exec(cookie) ?? [];
      if (value === '' || /max-age=0|expires=Thu, 01 Jan 1970/i.test(cookie)) jar.delete(name);
      else jar.set(name, value);
    }
    const to = response.headers.get('location');
    return {
      status: response.status,
      place: url.pathname + url.search + url.hash,
      origin: url.origin,
      set_cookies,
      text: await response.text(),
      to: to === null ? null : new URL(to, url).href,
    };
  }

  /** Follows redirects to a page: the provider's form, or one of the console. */
  async visit(address: string, form?: Record<string, string>): Promise<Page> {
    let page = await this.ask(address, form);
    const set_cookies = [...page.set_cookies];
    for (let hops = 0; page.to !== null; hops++) {
      assert.ok(hops < 12, `too many redirects, to ${page.to}`);
      const { origin, pathname, href, search, hash } = new URL(page.to);
      const is_console = origin === this.#api.context.public_url && !pathname.startsWith('/v1/');
      if (is_console) return { ...page, place: pathname + search + hash, origin, set_cookies };
      page = await this.ask(href);
      set_cookies.push(...page.set_cookies);
    }
    return { ...page, set_cookies };
  }

  /** Logs in at the provider, from `start` on; where the provider knows the browser still, without a form. */
  async logIn(account: string, start = '/v1/auth/oidc/login'): Promise<Page> {
    const page = await this.visit(start);
    if (!page.place.startsWith('/interaction/')) return page;
    return this.visit(page.origin + page.place, { account });
  }

  /** Ends what the browser is at an origin. */
  forget(origin: string): void {
    this.#jars.delete(origin);
  }

  cookie(origin: string, name: string): string | undefined {
    return this.#jars.get(origin)?.get(name);
  }

  setCookie(origin: string, name: string, value: string): void {
    this.#jars.get(origin)?.set(name, value);
  }

  /** What the console does when it loads: a session token by the refresh cookie; null: there is no session. */
  async session(): Promise<string | null> {
    const value = this.cookie(this.#api.context.public_url, REFRESH_COOKIE);
    const headers = value === undefined ? {} : { cookie: `${REFRESH_COOKIE}=${value}` };
    const answer = await this.#api.client.call<{ session_token: string }>('POST', '/v1/auth/refresh', {
      json: {},
      headers,
    });
    if (answer.status !== 200) return null;
    const [set = ''] = [answer.headers['set-cookie']].flat();
    const next = /=([^;]+)/.exec(set)?.[1];
    if (next !== undefined) this.setCookie(this.#api.context.public_url, REFRESH_COOKIE, next);
    return answer.body.session_token;
  }
}
