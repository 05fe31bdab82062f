/**
 * Checks the text of a webhook's URL: https (http only if the operator allows networks), no user, no fragment, no
 * forbidden literal address. The URL parser normalises notations first: `2130706433`, `0x7f.1` and `017700000001` are
 * 127.0.0.1.
 */
import { isIP } from 'node:net';
import { invalid } from '../../../shared/errors.ts';
import { type Network, type Protocol, refusal } from './address-policy.ts';

const MAX_URL_LENGTH = 2048;

/** @throws AppError INVALID_REQUEST about `url` */
export function checkUrl(text: string, allow: readonly Network[]): URL {
  // The parser would drop or encode these silently.
  // biome-ignore lint/suspicious/noControlCharactersInRegex: it refuses them
  if (/[\u0000-\u0020\u007f]/.test(text))
    throw invalid('url', 'must have no space or control character in it');
  const url = URL.parse(text);
  if (url === null) throw invalid('url', 'must be a whole address such as https://example.org/hook');
  if (text.length > MAX_URL_LENGTH || url.href.length > MAX_URL_LENGTH) {
    throw invalid('url', `must have at most ${MAX_URL_LENGTH} characters`);
  }
  const protocol = protocolOf(url);
  if (protocol === null) throw invalid('url', 'must begin with https://');
  if (url.username !== '' || url.password !== '') throw invalid('url', 'must hold no user or password');
  if (text.includes('#')) throw invalid('url', 'must have no fragment (#…): it would never be sent');
  if (url.port === '0') throw invalid('url', 'must have a port from 1 to 65535');
  if (protocol === 'http:' && allow.length === 0) throw invalid('url', 'must begin with https://');
  const literal = literalOf(url);
  const reason = literal === null ? null : refusal(literal, protocol, allow);
  if (reason !== null) throw invalid('url', `its address ${reason}`);
  return url;
}

export function protocolOf({ protocol }: URL): Protocol | null {
  return protocol === 'https:' || protocol === 'http:' ? protocol : null;
}

/** The address in the URL, without brackets; null when its host is a name. */
export function literalOf({ hostname }: URL): string | null {
  const bare = hostname.replace(/^\[(.*)\]$/, '$1');
  return isIP(bare) === 0 ? null : bare;
}
