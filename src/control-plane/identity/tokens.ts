/**
 * Makes and checks bearer tokens: `<prefix>` + 43 base62 characters (256 random bits) + 6 base62 characters of the
 * CRC32 of those 43, zero-padded (`0-9A-Za-z`). Because of the checksum, a mistyped or made-up token is rejected
 * without a look-up in the database, which stores only the SHA-256 of a token.
 */
import { hash, randomInt } from 'node:crypto';
import { crc32 } from 'node:zlib';

const ALPHABET = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
const RANDOM_LENGTH = 43;
const CHECKSUM_LENGTH = 6;
const SHAPE = new RegExp(`^[0-9A-Za-z]{${RANDOM_LENGTH + CHECKSUM_LENGTH}}$`);

export const SESSION_PREFIX = 'berth_sess_';
export const API_KEY_PREFIX = 'berth_live_';
export const REFRESH_PREFIX = 'berth_refr_';
export const SUDO_PREFIX = 'berth_sudo_';
/** Tokens in mails. */
export const MAIL_PREFIX = 'berth_mail_';
/** What a program asks with whether its login is confirmed. */
export const DEVICE_PREFIX = 'berth_devc_';
/** Lets a host on another machine join, once. Its credential then is its own: `berth_host_…`. */
export const JOIN_PREFIX = 'berth_join_';
/** Tokens of ingresses on other machines. */
export const INGRESS_PREFIX = 'berth_ingress_';
/** Opens a console once. */
export const CONSOLE_PREFIX = 'berth_cons_';
/** Opens a stream to an exec once. */
export const EXEC_TICKET_PREFIX = 'berth_xtix_';
/** Opens a private HTTP port in a browser once, and the cookie that the browser then has. */
export const PORT_TICKET_PREFIX = 'berth_ptix_';
export const PORT_COOKIE_PREFIX = 'berth_pcky_';
const PREFIXES = [
  ...([SESSION_PREFIX, API_KEY_PREFIX, REFRESH_PREFIX] as const),
  ...([SUDO_PREFIX, MAIL_PREFIX, CONSOLE_PREFIX, EXEC_TICKET_PREFIX, JOIN_PREFIX] as const),
  ...([INGRESS_PREFIX] as const),
  ...([PORT_TICKET_PREFIX, PORT_COOKIE_PREFIX, DEVICE_PREFIX] as const),
] as const;
export type TokenPrefix = (typeof PREFIXES)[number];

function checksum(random: string): string {
  let value = crc32(random) >>> 0;
  let out = '';
  for (let i = 0; i < CHECKSUM_LENGTH; i++) {
    out = ALPHABET.charAt(value % 62) + out;
    value = Math.floor(value / 62);
  }
  return out;
}

export function newToken(prefix: TokenPrefix): string {
  let random = '';
  for (let i = 0; i < RANDOM_LENGTH; i++) random += ALPHABET.charAt(randomInt(62));
  return tokenOf(prefix, random);
}

/** `random`: 43 base62 characters. */
export function tokenOf(prefix: TokenPrefix, random: string): string {
  return prefix + random + checksum(random);
}

/** The last `length` digits of a number that has many more bits than they need. */
export function base62(bytes: Buffer, length: number): string {
  let value = BigInt(`0x${bytes.toString('hex')}`);
  let out = '';
  for (let i = 0; i < length; i++) {
    out = ALPHABET.charAt(Number(value % 62n)) + out;
    value /= 62n;
  }
  return out;
}

/** The prefix of a well-formed token; null for any other text. */
export function tokenPrefix(token: string): TokenPrefix | null {
  for (const prefix of PREFIXES) {
    if (!token.startsWith(prefix)) continue;
    const body = token.slice(prefix.length);
    if (!SHAPE.test(body)) return null;
    return checksum(body.slice(0, RANDOM_LENGTH)) === body.slice(RANDOM_LENGTH) ? prefix : null;
  }
  return null;
}

export function hashToken(token: string): Buffer {
  return hash('sha256', token, 'buffer');
}
