/** Parses values of command-line arguments: names, numbers, sizes and labels. */
import { UsageError } from './command-error.ts';

export function whole(name: string, text: string | undefined): number | undefined {
  if (text === undefined) return undefined;
  if (!/^\d{1,9}$/.test(text)) throw new UsageError(`--${name} takes a whole number, not ${text}`);
  return Number(text);
}

/** `--limit`, which a list of nothing would ignore. @throws UsageError */
export function limitOf(text: string | undefined): number {
  const most = whole('limit', text) ?? 50;
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
