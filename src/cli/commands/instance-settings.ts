/**
 * Defines the options of `berth create` and `berth set` for an instance's settings, and turns them into a request's
 * fields.
 */
import { readFileSync, statSync } from 'node:fs';
import type { CreateInstanceRequest, EgressMode, Instance } from '../../../client/src/berth.ts';
import type { Call, Option } from '../command.ts';
import { CommandError, UsageError } from '../command-error.ts';
import { durationOrOff, labels, sizeMib, wholeNumberOption } from '../values.ts';

/** For the help of commands that create an instance. */
export const DEFAULTS =
  'Defaults: --cpus 1 --memory 512m --disk 8g --auto-flush 1m --idle-timeout off --no-wake --restart never --keep 24,14.';

/** The API's limit, checked before a large file is read. */
const MAX_USER_DATA_BYTES = 64 * 1024;

const EGRESS_MODES: readonly EgressMode[] = ['open', 'deny', 'allow'];
type RestartPolicy = Instance['restart'];
const RESTART_POLICIES: readonly RestartPolicy[] = ['never', 'on_failure'];

export const SETTING_OPTIONS: Readonly<Record<string, Option>> = {
  cpus: { type: 'string', value: 'N', help: 'CPUs, 1 to 16' },
  memory: {
    type: 'string',
    value: 'SIZE',
    field: 'memory_mib',
    help: 'memory, such as 512m or 2g; a bare number is MiB',
  },
  disk: {
    type: 'string',
    value: 'SIZE',
    field: 'disk_gib',
    help: 'the disk, such as 8g or 100g; a bare number is GiB; it can only grow',
  },
  label: {
    type: 'string',
    value: 'KEY=VALUE',
    multiple: true,
    field: 'labels',
    help: 'a label; repeatable',
  },
  'auto-flush': {
    type: 'string',
    value: 'DURATION',
    field: 'auto_flush_seconds',
    help: 'save a running VM automatically this often, such as 30s or 5m; at least 5s, or off',
  },
  'idle-timeout': {
    type: 'string',
    value: 'DURATION',
    field: 'idle_timeout_seconds',
    help: 'stop the VM after this time without use, such as 30m or 2h; at least 1m, or off',
  },
  wake: {
    type: 'boolean',
    field: 'wake_on_connect',
    help: 'a connection to its SSH address, or a request to an HTTP port, starts the VM',
  },
  'no-wake': { type: 'boolean', help: 'a connection does not start the VM' },
  restart: {
    type: 'string',
    value: 'WHEN',
    choices: RESTART_POLICIES,
    field: 'restart',
    help: 'start a failed VM again: never (default) or on_failure, at most 5 times in 10 minutes',
  },
  egress: {
    type: 'string',
    value: 'open|deny|allow',
    choices: EGRESS_MODES,
    field: 'egress',
    help: 'what the VM may reach: the public internet, nothing, or what --allow lists',
  },
  allow: {
    type: 'string',
    value: 'HOST',
    multiple: true,
    field: 'egress.allow',
    help: 'a name, *.name, address or network, with an optional :port, for --egress allow; replaces the list; repeatable',
  },
  'host-label': {
    type: 'string',
    value: 'KEY=VALUE',
    multiple: true,
    field: 'placement',
    help: 'run only on hosts with this label; replaces the list; repeatable',
  },
  tolerate: {
    type: 'string',
    value: 'TAINT',
    multiple: true,
    field: 'placement.tolerations',
    help: 'run also on hosts with this taint; replaces the list; repeatable',
  },
  keep: {
    type: 'string',
    value: 'LAST[,DAYS]',
    field: 'generations_keep',
    help: 'keep the last generations, and then one a day for some days, such as 24,14',
  },
};

export const USER_DATA: Readonly<Record<string, Option>> = {
  'user-data': {
    type: 'string',
    value: 'FILE',
    field: 'user_data',
    help: 'a script that root runs once, at the first boot; - reads it from stdin',
  },
};

function egress({ options }: Call): CreateInstanceRequest['egress'] {
  const mode = options.text('egress') as EgressMode | undefined;
  const allow = options.list('allow');
  if (mode === undefined && allow === undefined) return undefined;
  return { ...(mode === undefined ? {} : { mode }), ...(allow === undefined ? {} : { allow: [...allow] }) };
}

function placement({ options }: Call): CreateInstanceRequest['placement'] {
  const host_labels = labels(options.list('host-label'));
  const tolerations = options.list('tolerate');
  if (host_labels === undefined && tolerations === undefined) return undefined;
  return {
    ...(host_labels === undefined ? {} : { host_labels }),
    ...(tolerations === undefined ? {} : { tolerations: [...tolerations] }),
  };
}

function wake({ options }: Call): boolean | undefined {
  if (options.flag('wake') && options.flag('no-wake'))
    throw new UsageError('--wake and --no-wake exclude each other');
  return options.flag('wake') ? true : options.flag('no-wake') ? false : undefined;
}

function keep(text: string | undefined): CreateInstanceRequest['generations_keep'] {
  if (text === undefined) return undefined;
  const [, last, daily_days = '0'] = /^(\d{1,9})(?:,(\d{1,9}))?$/.exec(text) ?? [];
  if (last === undefined) throw new UsageError(`--keep takes LAST or LAST,DAYS such as 24,14, not ${text}`);
  return { last: Number(last), daily_days: Number(daily_days) };
}

/** Sizes. Those but the disk's need a stopped instance. */
export function sizesOf({ options }: Call) {
  const disk_mib = sizeMib('disk', options.text('disk'), 'gib');
  return {
    cpus: wholeNumberOption('cpus', options.text('cpus')),
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
    auto_flush_seconds: durationOrOff('auto-flush', options.text('auto-flush')),
    idle_timeout_seconds: durationOrOff('idle-timeout', options.text('idle-timeout')),
    wake_on_connect: wake(call),
    restart: options.text('restart') as RestartPolicy | undefined,
    egress: egress(call),
    placement: placement(call),
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
    if (error instanceof TypeError) throw new CommandError(`${path} is not UTF-8 text`);
    if ((error as NodeJS.ErrnoException).code === 'ENOENT')
      throw new UsageError(`--user-data: there is no file ${path}`);
    throw error;
  }
}
