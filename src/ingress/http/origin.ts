/** A browser sends the cookie of a private port also with requests that another site's page makes: those may only read. */
import { valuesOf } from '../../shared/http-request.ts';
import type { Incoming } from './incoming.ts';
import { Refusal } from './refusal.ts';

const SAFE: readonly string[] = ['GET', 'HEAD', 'OPTIONS', 'TRACE'];

/** For a request that the cookie let in. @throws Refusal 403 */
export function checkOrigin(
  { method, raw, checked: { host } }: Incoming,
  { upgrade }: { upgrade: boolean },
): void {
  if (SAFE.includes(method) && !upgrade) return;
  const origins = valuesOf(raw, 'origin');
  const [site] = valuesOf(raw, 'sec-fetch-site');
  const is_foreign =
    origins.length === 0
      ? site === 'cross-site' || site === 'same-site'
      : origins.some((origin) => !isOriginOf(origin, host));
  if (is_foreign) {
    throw new Refusal(
      403,
      'FORBIDDEN',
      'This request came from a page of another site, so it was not passed on.',
    );
  }
}

/** Whatever the scheme: a proxy in front may do TLS. */
function isOriginOf(origin: string, host: string): boolean {
  if (!/^https?:\/\//.test(origin) || !URL.canParse(origin)) return false;
  const { protocol, host: theirs } = new URL(origin);
  const own = `${protocol}//${host}`;
  return URL.canParse(own) && new URL(own).host === theirs;
}
