/**
 * Parses and checks the values of arguments and options: choices, numbers, sizes, durations, times, labels, names. A
 * refusal says what is allowed.
 */
import type { EventType, VmState } from '../../client/src/berth.ts';
import type { Member } from '../../client/src/generated.ts';
import { DURATION_EXAMPLES, readDuration } from '../../client/src/words.ts';
import { nearest } from '../shared/nearest.ts';
import { UsageError } from './command-error.ts';
import type { Cell } from './table.ts';

/** Longer lists are named only where no choice is near. */
const MOST_LISTED = 8;

/** `. Did you mean X?`; nothing where no word is near. */
export function didYouMean(word: string, known: readonly string[], prefix = ''): string {
  const meant = nearest(word, known);
  return meant === undefined ? '' : `. Did you mean ${prefix}${meant}?`;
}

/** @param where the option or argument that has it @throws UsageError */
export function choiceOf<T extends string>(where: string, text: string, choices: readonly T[]): T {
  const choice = choices.find((each) => each === text);
  if (choice !== undefined) return choice;
  const hint = didYouMean(text, choices);
  if (hint !== '' && choices.length > MOST_LISTED) throw new UsageError(`${where} cannot be ${text}${hint}`);
  const all = `${choices.slice(0, -1).join(', ')} or ${choices.at(-1)}`;
  throw new UsageError(`${where} takes ${all}, not ${text}${hint}`);
}

export function wholeNumberOption(name: string, text: string | undefined): number | undefined {
  if (text === undefined) return undefined;
  if (!/^\d{1,9}$/.test(text)) throw new UsageError(`--${name} takes a whole number, not ${text}`);
  return Number(text);
}

/** `--limit`, which a list of nothing would ignore. @throws UsageError */
export function limitOption(text: string | undefined): number {
  const most = wholeNumberOption('limit', text) ?? 50;
  if (most === 0) throw new UsageError('--limit must be at least 1');
  return most;
}

export const isInstanceName = (text: string) => /^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/.test(text);

export const NAME_RULE = 'a name has 1 to 63 characters, each a-z, 0-9 or -, and no - at its ends';

/** Explains a name's rules, instead of the server's pattern. */
export function instanceName(text: string): string {
  if (isInstanceName(text)) return text;
  throw new UsageError(`${NAME_RULE}, not ${text.length > 63 ? `${text.length} characters` : text}`);
}

const SIZE_MIB = { '': 1, m: 1, mib: 1, g: 1024, gib: 1024, t: 1024 * 1024, tib: 1024 * 1024 } as const;

/** `512`, `512m`, `2g` as MiB; a bare number has the unit `bare`. */
export function sizeMib(name: string, text: string | undefined, bare: 'mib' | 'gib'): number | undefined {
  if (text === undefined) return undefined;
  const [, number, unit = ''] = /^(\d{1,9})([a-z]*)$/.exec(text.toLowerCase()) ?? [];
  const factor = SIZE_MIB[(unit === '' ? bare : unit) as keyof typeof SIZE_MIB];
  if (number === undefined || factor === undefined) {
    throw new UsageError(`--${name} takes a size such as 512m or 2g, not ${text}`);
  }
  return Number(number) * factor;
}

export function labels(list: readonly string[] | undefined): Record<string, string> | undefined {
  if (list === undefined) return undefined;
  return Object.fromEntries(
    list.map((each) => {
      const at = each.indexOf('=');
      if (at < 1) throw new UsageError(`--label takes KEY=VALUE, not ${each}`);
      return [each.slice(0, at), each.slice(at + 1)];
    }),
  );
}

/** A TCP port. */
export function tcpPort(text: string): number {
  const port = /^\d{1,5}$/.test(text) ? Number(text) : 0;
  if (port >= 1 && port <= 65_535) return port;
  throw new UsageError(`a port is a number from 1 to 65535, not ${text === '' ? 'nothing' : text}`);
}

/** @returns seconds @throws UsageError */
export function parseDuration(text: string): number {
  const seconds = readDuration(text);
  if (seconds !== null) return seconds;
  throw new UsageError(
    lacksUnit(text)
      ? withUnits(text)
      : `a duration is a number with its unit, such as ${DURATION_EXAMPLES}, not ${text}`,
  );
}

const lacksUnit = (text: string) => /^\d{1,9}$/.test(text);
const withUnits = (text: string) => `${text} has no unit: write ${text}s, ${text}m, ${text}h or ${text}d`;

/** The value of an option, in seconds. @throws UsageError that names the option */
export function durationOption(name: string, text: string | undefined, or_off = false): number | undefined {
  if (text === undefined) return undefined;
  try {
    return parseDuration(text);
  } catch (error) {
    if (!(error instanceof UsageError)) throw error;
    throw new UsageError(
      lacksUnit(text)
        ? `--${name}: ${withUnits(text)}`
        : `--${name} takes a duration such as ${DURATION_EXAMPLES}, ${or_off ? 'or off, ' : ''}not ${text}`,
    );
  }
}

/** The same, or null for `off`. */
export function durationOrOff(name: string, text: string | undefined): number | null | undefined {
  return text === 'off' ? null : durationOption(name, text, true);
}

/**
 * The value of an option such as --since: a duration before now, a date, or a time.
 * @returns RFC 3339 @throws UsageError that names the option
 */
export function timeOption(name: string, text: string | undefined, now_ms = Date.now()): string | undefined {
  if (text === undefined) return undefined;
  if (/^\d{1,9}[smhd]$/.test(text)) return new Date(now_ms - parseDuration(text) * 1_000).toISOString();
  const time_ms = /^\d{4}-\d\d-\d\d/.test(text) ? Date.parse(text) : Number.NaN;
  if (!Number.isNaN(time_ms)) return new Date(time_ms).toISOString();
  if (lacksUnit(text)) throw new UsageError(`--${name}: ${withUnits(text)}`);
  throw new UsageError(
    `--${name} takes a duration before now such as 10m, 24h or 7d, or a time such as 2026-11-25T09:12:00Z, not ${text}`,
  );
}

/** `all permissions`, `instances:read vm:write` */
export const scopeWords = (scope: string) => (scope === '*' ? 'all permissions' : scope);

/** More than these are counted. */
const MOST_SHOWN = 4;

export function scopeCell(scope: string): Cell {
  const count = scope.split(' ').length;
  return { text: count > MOST_SHOWN ? `${count} permissions` : scopeWords(scope), value: scope };
}

const VM_STATES: Readonly<Record<VmState, true>> = {
  starting: true,
  running: true,
  restarting: true,
  suspending: true,
  suspended: true,
  stopping: true,
  stopped: true,
  failed: true,
};
export const STATES: readonly string[] = Object.keys(VM_STATES);

export const ROLES: readonly Member['role'][] = ['owner', 'admin', 'member', 'billing'];

const TYPES: Readonly<Record<EventType, true>> = {
  'instance.created': true,
  'instance.deleted': true,
  'instance.forked': true,
  'instance.restored': true,
  'instance.ssh_keys_replaced': true,
  'vm.started': true,
  'vm.stopped': true,
  'vm.suspended': true,
  'vm.restarted': true,
  'vm.failed': true,
  'vm.recovered': true,
  'disk.flushed': true,
  'disk.flush_failed': true,
  'egress.denied': true,
  'port.created': true,
  'port.changed': true,
  'port.deleted': true,
  'ssh_key.added': true,
  'ssh_key.revoked': true,
  'api_key.created': true,
  'api_key.rotated': true,
  'api_key.revoked': true,
  'member.added': true,
  'member.removed': true,
  'member.role_changed': true,
  'webhook.disabled': true,
  'webhook.ping': true,
};

export const EVENT_TYPES: readonly string[] = Object.keys(TYPES);
