/** Commands on notifications, events and the audit log. */
import type { Event, Notification } from '../../../client/src/berth.ts';
import { actorNames, targetNames } from '../actor-names.ts';
import type { Call, Command } from '../command.ts';
import { whole } from '../numbers.ts';
import { collect } from '../reading.ts';
import { ago, wrapped } from '../format.ts';
import { printEvent } from './webhook-commands.ts';

const LIMIT = {
  limit: { type: 'string', value: 'N', help: 'how many of the newest; default: 50' },
} as const;
const FOLLOW = {
  follow: { type: 'boolean', short: 'f', help: 'then print new ones as they come, until Ctrl-C' },
} as const;

/** The text below the title. */
const BODY_AT = 22;

const mostOf = ({ options }: Call) => whole('limit', options.text('limit')) ?? 50;

function printNotification({ terminal }: Call, each: Notification): void {
  if (terminal.format === 'json') {
    terminal.jsonLine(each);
    return;
  }
  if (terminal.format === 'quiet') {
    terminal.write(`${each.id}\n`);
    return;
  }
  const times = each.count > 1 ? ` (${each.count} times)` : '';
  const when = ago(each.created_at).padEnd(10);
  const body = wrapped(each.body, (process.stdout.columns ?? Number.POSITIVE_INFINITY) - BODY_AT);
  terminal.write(
    `${when}  ${each.severity.padEnd(8)}  ${each.title}${times}\n` +
      body.map((line) => `${' '.repeat(BODY_AT)}${line}\n`).join(''),
  );
}

async function notifications(call: Call): Promise<undefined> {
  const { session, options, terminal, signal } = call;
  const berth = session.berth();
  if (options.flag('read')) {
    const { count } = await berth.call('markAllNotifications', {});
    return void terminal.done(`${count} marked as read.`, { count }, String(count));
  }
  if (options.flag('follow')) {
    for await (const { event, data } of berth.notifications({ signal })) {
      if (event === 'notification') printNotification(call, data as Notification);
      if (event === 'reset')
        terminal.warn('berth: some may have been missed; berth notifications lists them');
    }
    return undefined;
  }
  const status = options.flag('all') ? undefined : ('unread' as const);
  const most = mostOf(call);
  const input = { query: { status, limit: Math.max(1, Math.min(100, most)) } };
  const found = await collect(berth.list('listNotifications', input), most);
  if (terminal.format === 'json') terminal.json(found);
  else if (found.length === 0) terminal.say(status === undefined ? 'None yet.' : 'Nothing unread.');
  // The newest last, as in a log.
  else for (const each of found.reverse()) printNotification(call, each);
  return undefined;
}

async function events(call: Call): Promise<undefined> {
  const { session, options, terminal, signal } = call;
  const berth = session.berth();
  const name = options.text('instance');
  const resource = name === undefined ? undefined : (await berth.instances.find(name)).id;
  const nameOf = actorNames(call);
  const type = options.text('type') as Event['type'] | undefined;
  if (options.flag('follow')) {
    const onReset = () =>
      terminal.warn('berth: some may have been missed; berth events lists those that are kept');
    for await (const event of berth.events({ type, resource }, { signal, onReset })) {
      printEvent(call, event, nameOf);
    }
    return undefined;
  }
  const most = mostOf(call);
  const input = { query: { type, resource, limit: Math.max(1, Math.min(200, most)) } };
  const found = await collect(berth.list('listEvents', input), most);
  if (terminal.format === 'json') return void terminal.json(found);
  // The newest last, as in a log.
  for (const event of found.reverse()) printEvent(call, event, nameOf);
}

export const WATCH_COMMANDS: readonly Command[] = [
  {
    name: 'notifications',
    summary: 'list your notifications; --read marks them as read',
    example: 'berth notifications -f',
    options: {
      ...FOLLOW,
      all: { type: 'boolean', help: 'read ones too' },
      read: { type: 'boolean', help: 'mark all as read' },
      ...LIMIT,
    },
    run: notifications,
  },
  {
    name: 'events',
    summary: 'list the events of the organisation',
    example: 'berth events -f --instance web',
    options: {
      ...FOLLOW,
      instance: { type: 'string', value: 'NAME', help: 'only of this instance' },
      type: { type: 'string', value: 'TYPE', help: 'only this type: vm.started, disk.flushed, …' },
      ...LIMIT,
    },
    run: events,
  },
  {
    name: 'audit ls',
    short: ['audit'],
    summary: 'show the audit log: who did what, when and from where',
    example: 'berth audit --limit 20',
    options: LIMIT,
    run: async (call) => {
      const most = mostOf(call);
      const input = { query: { limit: Math.max(1, Math.min(200, most)) } };
      const nameOf = actorNames(call);
      const targetOf = await targetNames(call);
      call.terminal.list(await collect(call.session.berth().list('listAudit', input), most), {
        headings: ['#', 'AT', 'ACTOR', 'ACTION', 'TARGET', 'FROM'],
        row: (each) => [
          // Null until the entry is sealed, shortly after the request.
          String(each.seq ?? ''),
          each.at,
          nameOf(each.actor),
          each.action,
          each.target === null ? '-' : targetOf(each.target),
          each.ip ?? '-',
        ],
        quiet: ({ id }) => id,
        empty: 'Nothing yet.',
      });
      return undefined;
    },
  },
];
