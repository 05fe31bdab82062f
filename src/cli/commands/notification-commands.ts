/** `berth notification …`: the user's notifications, and which of them are mailed. */
import type { Answer, Notification } from '../../../client/src/berth.ts';
import type { NotificationKind } from '../../../client/src/generated.ts';
import type { Call, Command } from '../command.ts';
import { UsageError } from '../command-error.ts';
import { ago, wrapped } from '../format.ts';
import { whole } from '../numbers.ts';
import { collect } from '../reading.ts';
import { readSettings } from '../settings.ts';

/** The text below the title. */
const BODY_AT = 22;
const MAX_PAGE = 100;

function print({ terminal }: Call, each: Notification): void {
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
  const body = wrapped(
    `${each.body} (${each.id})`,
    (process.stdout.columns ?? Number.POSITIVE_INFINITY) - BODY_AT,
  );
  terminal.write(
    `${when}  ${each.severity.padEnd(8)}  ${each.title}${times}\n` +
      body.map((line) => `${' '.repeat(BODY_AT)}${line}\n`).join(''),
  );
}

async function markAll({ session, terminal }: Call): Promise<undefined> {
  const { count } = await session.berth().call('markAllNotifications', {});
  terminal.done(`${count} marked as read.`, { count }, String(count));
}

async function list(call: Call): Promise<undefined> {
  const { session, options, terminal, signal } = call;
  const berth = session.berth();
  if (options.flag('read')) return markAll(call);
  if (options.flag('follow')) {
    for await (const { event, data } of berth.notifications({ signal })) {
      if (event === 'notification') print(call, data as Notification);
      if (event === 'reset')
        terminal.warn('berth: some may have been missed; berth notifications lists them');
    }
    return undefined;
  }
  const status = options.flag('all') ? undefined : ('unread' as const);
  const most = whole('limit', options.text('limit')) ?? 50;
  const input = { query: { status, limit: Math.max(1, Math.min(MAX_PAGE, most)) } };
  const found = await collect(berth.list('listNotifications', input), most);
  if (terminal.format === 'json') terminal.json(found);
  else if (found.length === 0) terminal.say(status === undefined ? 'None yet.' : 'Nothing unread.');
  else for (const each of found) print(call, each);
  return undefined;
}

async function read(call: Call): Promise<undefined> {
  const { args, options, session, terminal } = call;
  if (args.length > 0 === options.flag('all')) {
    throw new UsageError('name notifications by their ids, or mark all with --all');
  }
  if (options.flag('all')) return markAll(call);
  const body = { read: !options.flag('unread') };
  const berth = session.berth();
  const marked: Notification[] = [];
  for (const id of args) marked.push(await berth.call('markNotification', { path: { id }, body }));
  terminal.done(`${marked.length} marked as ${body.read ? 'read' : 'unread'}.`, marked, args.join('\n'));
}

const STATES = { on: true, off: false } as const;

async function mail(call: Call): Promise<undefined> {
  const { args, session } = call;
  const berth = session.berth();
  const preferences = await berth.call('getNotificationPreferences', {});
  const [said, state] = args;
  if (said === undefined) return listMail(call, preferences);
  const kind = (Object.keys(preferences.mail) as NotificationKind[]).find((each) => each === said);
  if (kind === undefined)
    throw new UsageError(`there is no kind ${said}: berth notification mail lists them`);
  if (state !== 'on' && state !== 'off')
    throw new UsageError(`berth notification mail ${kind} takes on or off`);
  const free = Object.entries(preferences.mail).filter(
    ([each]) => !(preferences.always as readonly string[]).includes(each),
  );
  const wanted = { ...Object.fromEntries(free), [kind]: STATES[state] };
  const set = await berth.call('setNotificationPreferences', { body: { mail: wanted } });
  call.terminal.done(`${kind} ${STATES[state] ? 'is' : 'is no longer'} mailed.`, set, kind);
}

async function listMail(
  { session, terminal }: Call,
  preferences: Answer<'getNotificationPreferences'>,
): Promise<undefined> {
  if (terminal.format === 'json') return void terminal.json(preferences);
  const always = preferences.always as readonly string[];
  terminal.list(Object.entries(preferences.mail), {
    headings: ['KIND', 'MAIL', 'WHEN'],
    row: ([kind, mailed]) => [
      kind,
      always.includes(kind) ? 'always' : mailed ? 'on' : 'off',
      preferences.descriptions[kind as NotificationKind],
    ],
    quiet: ([kind]) => kind,
    empty: '',
  });
  if (terminal.format === 'human' && (await readSettings(session.url)).mail === 'files')
    terminal.warn('This server sends no mail: its mails are files in its data folder, in mail/.');
}

export const NOTIFICATION_COMMANDS: readonly Command[] = [
  {
    name: 'notification ls',
    lists: false,
    short: ['notifications'],
    summary: 'list your notifications, newest first',
    example: 'berth notifications -f',
    options: {
      follow: { type: 'boolean', short: 'f', help: 'print new ones as they come, until Ctrl-C' },
      all: { type: 'boolean', help: 'read ones too' },
      read: { type: 'boolean', help: 'mark all as read, and list none' },
      limit: { type: 'string', value: 'N', help: 'how many of the newest; default: 50' },
    },
    run: list,
  },
  {
    name: 'notification read',
    args: ['[ID…]'],
    summary: 'mark notifications as read',
    example: 'berth notification read --all',
    options: {
      all: { type: 'boolean', help: 'all of them' },
      unread: { type: 'boolean', help: 'mark those as unread instead' },
    },
    run: read,
  },
  {
    name: 'notification mail',
    args: ['[KIND]', '[on|off]'],
    fields: { mail: 'KIND' },
    summary: 'list which kinds of notifications are also mailed to you, or change one',
    example: 'berth notification mail vm.failed off',
    run: mail,
  },
];
