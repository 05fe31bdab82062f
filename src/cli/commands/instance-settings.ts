/** An instance's settings as options of `create` and `set`. */
import { readFileSync, statSync } from 'node:fs';
import type { CreateInstanceRequest } from '../../../client/src/berth.ts';
import type { Call, Option } from '../command.ts';
import { CommandError, UsageError } from '../command-error.ts';
import { labels, sizeMib, whole, wholeOrOff } from '../numbers.ts';

/** The API's limit, checked before a large file is read. */
const MAX_USER_DATA_BYTES = 64 * 1024;

export const SETTINGS: Readonly<Record<string, Option>> = {
  cpus: { type: 'string', value: 'N', help: '1 to 16' },
  memory: { type: 'string', value: 'SIZE', help: '512m, 2g; a bare number is MiB' },
  disk: { type: 'string', value: 'SIZE', help: '8g, 100g; a bare number is GiB; it only grows' },
  label: { type: 'string', value: 'KEY=VALUE', multiple: true, help: 'repeatable' },
  'auto-flush': {
    type: 'string',
    value: 'SECONDS',
    help: 'save automatically this often while it runs, at least 5 (default: 60), or off',
  },
  'idle-timeout': {
    type: 'string',
    value: 'SECONDS',
    help: 'stop the VM when nobody has used it for this long, at least 60, or off',
  },
  wake: { type: 'boolean', help: 'a connection to its SSH port starts the VM' },
  'no-wake': { type: 'boolean', help: 'a connection does not start it' },
  keep: {
    type: 'string',
    value: 'LAST[,DAYS]',
    help: 'how many generations are kept, then one a day for how many days',
  },
};

export const USER_DATA: Readonly<Record<string, Option>> = {
  'user-data': {
    type: 'string',
    value: 'FILE',
    help: 'a script that root runs once, at the first boot; - is stdin',
  },
};

function wake({ options }: Call): boolean | undefined {
  if (options.flag('wake') && options.flag('no-wake')) throw new UsageError('--wake or --no-wake, not both');
  return options.flag('wake') ? true : options.flag('no-wake') ? false : undefined;
}

function keep(text: string | undefined): CreateInstanceRequest['generations_keep'] {
  if (text === undefined) return undefined;
  const [, last, daily_days = '0'] = /^(\d{1,9})(?:,(\d{1,9}))?$/.exec(text) ?? [];
  if (last === undefined) throw new UsageError(`--keep takes LAST or LAST,DAYS such as 24,14, not ${text}`);
  return { last: Number(last), daily_days: Number(daily_days) };
}

/** Options that need a stopped instance. */
export function sizesOf({ options }: Call) {
  const disk_mib = sizeMib('disk', options.text('disk'), 'gib');
  return {
    cpus: whole('cpus', options.text('cpus')),
    memory_mib: sizeMib('memory', options.text('memory'), 'mib'),
    disk_gib: disk_mib === undefined ? undefined : Math.ceil(disk_mib / 1024),
  };
}

/** @throws UsageError */
export function settingsOf(call: Call) {
  const { options } = call;
  return {
    ...sizesOf(call),
    labels: labels(options.list('label')),
    auto_flush_seconds: wholeOrOff('auto-flush', options.text('auto-flush')),
    idle_timeout_seconds: wholeOrOff('idle-timeout', options.text('idle-timeout')),
    wake_on_connect: wake(call),
    generations_keep: keep(options.text('keep')),
  };
}

/** @throws CommandError when it cannot be read */
export async function userDataOf({ options, terminal }: Call): Promise<string | undefined> {
  const path = options.text('user-data');
  if (path === undefined) return undefined;
  if (path === '-') return terminal.stdin();
  try {
    if (statSync(path).size > MAX_USER_DATA_BYTES) throw new CommandError(`${path} has more than 64 KiB`);
    return new TextDecoder('utf-8', { fatal: true }).decode(readFileSync(path));
  } catch (error) {
    if (error instanceof TypeError) throw new CommandError(`${path} is no UTF-8 text`);
    throw error;
  }
}
