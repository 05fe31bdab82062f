/**
 * Text helpers that the command line and the console share, so that both say the same:
 *
 * - `readDuration`, `durationText`: parse and format durations such as `10m`.
 * - `localLinkWarning`: warns about a link to `localhost`, which a server without BERTH_PUBLIC_URL makes.
 * - `programName`: shortens a user agent to a name such as `Firefox on Linux`.
 * - `scopeOfRole`: lists the rights of a member's role in the form of an API key's scope.
 */
import type { Member } from './generated.ts';

const SECONDS = { s: 1, m: 60, h: 3_600, d: 86_400 } as const;
type Unit = keyof typeof SECONDS;

/** For help, and for errors. */
export const DURATION_EXAMPLES = '30s, 10m, 24h or 7d';

/** A duration as people type it (`30s`, `10m`, `24h`, `7d`) in seconds; null: not a duration. Only 0 needs no unit. */
export function readDuration(text: string): number | null {
  if (text === '0') return 0;
  const [, number, unit] = /^(\d{1,9})([smhd])$/.exec(text) ?? [];
  return number === undefined ? null : Number(number) * SECONDS[unit as Unit];
}

/** Seconds as {@link readDuration} reads them, in the largest unit that leaves no rest: 900 is `15m`. */
export function durationText(seconds: number): string {
  const unit =
    (['d', 'h', 'm'] as const).find((each) => seconds !== 0 && seconds % SECONDS[each] === 0) ?? 's';
  return `${seconds / SECONDS[unit]}${unit}`;
}

const LOCAL = /^(localhost|127\.\d+\.\d+\.\d+|0\.0\.0\.0|\[::1?\])$/;

/**
 * Why others cannot open a link, and what to do; undefined: they can, as far as the link shows. While BERTH_PUBLIC_URL
 * is not set, a server makes links that lead to the machine of whoever opens them.
 */
export function localLinkWarning(link: string): string | undefined {
  if (!URL.canParse(link)) return undefined;
  const { hostname, origin } = new URL(link);
  if (!LOCAL.test(hostname)) return undefined;
  return `This link opens only on the server itself, because it starts with ${origin}. Set BERTH_PUBLIC_URL on the server to an address that others reach, and make a new link.`;
}

/** Most browsers also name others in their user agent, so the order matters. */
const PROGRAMS = [
  [/^berth-cli\b/, 'berth command line'],
  [/^curl\//, 'curl'],
  [/\bEdgA?\//, 'Edge'],
  [/\b(?:OPR|Opera)\//, 'Opera'],
  [/\b(?:Firefox|FxiOS)\//, 'Firefox'],
  [/(?:Chrome|Chromium|CriOS)\//, 'Chrome'],
  [/\bSafari\//, 'Safari'],
] as const;
const SYSTEMS = [
  [/Android/, 'Android'],
  [/iPhone/, 'iPhone'],
  [/iPad/, 'iPad'],
  [/CrOS/, 'ChromeOS'],
  [/Mac OS X|darwin/, 'macOS'],
  [/Windows/, 'Windows'],
  [/Linux|linux/, 'Linux'],
] as const;
const MAX_LENGTH = 40;

function firstOf(names: readonly (readonly [RegExp, string])[], text: string): string | undefined {
  return names.find(([pattern]) => pattern.test(text))?.[1];
}

/** A short name for a user agent: `Firefox on Linux`; the beginning of the text if the program is not known. */
export function programName(user_agent: string): string {
  const program = firstOf(PROGRAMS, user_agent);
  if (program === undefined) return user_agent.slice(0, MAX_LENGTH).toWellFormed() || 'unknown program';
  const system = firstOf(SYSTEMS, user_agent);
  return system === undefined ? program : `${program} on ${system}`;
}

const ANY = [
  'instances:read vm:read webhooks:read org:read',
  'ssh_keys:read ssh_keys:write notifications:read notifications:write api_keys:read api_keys:write',
].join(' ');

const SCOPES: Readonly<Record<Member['role'], string>> = {
  owner: '*',
  admin: '*',
  member: `${ANY} instances:write vm:write`,
  billing: `${ANY} org:write`,
};

/** A role's rights as the scope of a key. The server makes no key with more than its creator's rights (docs/permissions.md). */
export function scopeOfRole(role: Member['role']): string {
  return SCOPES[role];
}
