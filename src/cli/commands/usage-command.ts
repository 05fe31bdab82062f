/** berth usage: what each instance used, in total, by the day or by the hour. */
import type { Usage } from '../../../client/src/berth.ts';
import { gibHoursText, hoursText, usageByInstance } from '../../../client/src/usage.ts';
import type { Call, Command } from '../command.ts';
import { timeOption } from '../duration.ts';
import { collect } from '../reading.ts';
import { type Cell, localTime, sizeCell } from '../table.ts';

const PERIODS = ['total', 'day', 'hour'] as const;

const gibHours = (value: number): Cell => ({ text: value === 0 ? '-' : gibHoursText(value), value });
const time = (seconds: number): Cell => ({
  text: seconds === 0 ? '-' : hoursText(seconds),
  value: seconds,
});

async function usage({ args, options, session, terminal }: Call): Promise<undefined> {
  const by = PERIODS.find((each) => each === options.text('by')) ?? 'total';
  const berth = session.berth();
  const one = args[0] === undefined ? undefined : await berth.instances.find(args[0]);
  const query = {
    from: timeOption('since', options.text('since')),
    to: timeOption('until', options.text('until')),
    interval: by === 'hour' ? ('hour' as const) : ('day' as const),
    instance: one?.id,
    limit: 200,
  };
  const entries = await collect(berth.list('listUsage', { query }));
  const names = new Map((one ? [one] : await collect(berth.instances.list({ limit: 200 }))).map(nameOf));
  const nameOrId = ({ instance_id }: Usage) => names.get(instance_id) ?? instance_id;
  const shown = by === 'total' ? usageByInstance(entries) : entries;
  terminal.list(shown, {
    headings: [
      ...(by === 'total' ? [] : ['START']),
      ...['INSTANCE', 'RUNNING', 'CPU TIME', 'MEMORY', 'STORED', 'FLUSHED', 'HTTP'],
    ],
    row: (each) => [
      ...(by === 'total' ? [] : [startOf(each, by)]),
      {
        text: names.has(each.instance_id) ? nameOrId(each) : `${each.instance_id} (deleted)`,
        value: nameOrId(each),
      },
      time(each.running_seconds),
      time(each.cpu_seconds),
      gibHours(each.memory_gib_hours),
      gibHours(each.stored_gib_hours),
      sizeCell(each.flushed_bytes),
      sizeCell(each.http_bytes),
    ],
    quiet: nameOrId,
    empty: 'Nothing was used in this time.',
  });
  return undefined;
}

const nameOf = ({ id, name }: { id: string; name: string }) => [id, name] as const;

/** Days are those of UTC, hours are shown in local time. */
function startOf({ start }: Usage, by: 'day' | 'hour'): Cell {
  return { text: by === 'day' ? start.slice(0, 10) : localTime(start).slice(0, -3), value: start };
}

export const USAGE: Command = {
  name: 'usage',
  args: ['[NAME]'],
  names_instances: true,
  lists: true,
  summary:
    'show how long instances ran and how much they used and stored, up to 13 months back. GiB h are GiB times hours, days are those of UTC, and deleted instances are included',
  example: 'berth usage --since 7d --by day',
  options: {
    since: {
      type: 'string',
      value: 'TIME',
      field: 'from',
      help: 'from then on: a duration such as 7d, or a time; default: 30d',
    },
    until: {
      type: 'string',
      value: 'TIME',
      field: 'to',
      help: 'until then: a duration such as 1d, or a time; default: now',
    },
    by: {
      type: 'string',
      value: 'PERIOD',
      choices: PERIODS,
      field: 'interval',
      help: 'one row for each instance and day or hour, or only the total (default)',
    },
  },
  run: usage,
};
