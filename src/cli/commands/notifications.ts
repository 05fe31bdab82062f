/**
 * The commands `berth notification …`: list, show, follow and mark the user's notifications, and choose which of them
 * are mailed.
 */
import { type Answer, BerthError, type Notification } from '../../../client/src/berth.ts';
import type { NotificationKind } from '../../../client/src/generated.ts';
import type { Call, Command } from '../command.ts';
import { CommandError, EXIT, UsageError } from '../command-error.ts';
import { changeCurrent, collect } from '../reading.ts';
import { readSettings } from '../server-facts.ts';
import { cell, flagCell, type Listing, localTime, numberCell, timeCell, when, wrapped } from '../table.ts';
import { didYouMean, limitOption } from '../values.ts';

/** The text below the title. */
const TEXT_AT = 31;

const MAX_PAGE = 100;

const titleOf = ({ title, count }: Notification) => `${title}${count > 1 ? ` (${count} times)` : ''}`;

/** One as it comes: its line, and its text below. */
function print({ terminal }: Call, each: Notification): void {
  if (terminal.format === 'json') terminal.jsonLine(each);
  else if (terminal.format === 'quiet') terminal.write(`${each.id}\n`);
  else {
    const head = `${localTime(each.created_at)}  ${each.severity.padEnd(8)}  ${titleOf(each)}`;
    terminal.write(`${head}\n${indentedText(each.body)}\n`);
  }
}

function indentedText(text: string): string {
  const width = (process.stdout.columns ?? Number.POSITIVE_INFINITY) - TEXT_AT;
  return wrapped(text, width)
    .map((line) => `${' '.repeat(TEXT_AT)}${line}`)
    .join('\n');
}

const LISTING: Listing<Notification> = {
  headings: ['WHEN', 'SEVERITY', { for_people: 'NOTIFICATION' }, 'ID'],
  row: (each) => [timeCell(each.created_at), each.severity, titleOf(each), each.id],
  more: {
    headings: ['KIND', 'TITLE', 'TEXT', 'COUNT', 'READ', 'RESOURCE'],
    row: ({ kind, title, body, count, read_at, resource }) => [
      kind,
      title,
      body,
      numberCell(count),
      timeCell(read_at),
      resource?.id ?? '-',
    ],
  },
  quiet: ({ id }) => id,
  empty: 'No notifications.',
};

async function markAll({ session, terminal }: Call): Promise<undefined> {
  const { count } = await session.berth().call('markAllNotifications', {});
  terminal.done(`${count} marked as read.`, { count }, String(count));
}

async function list(call: Call): Promise<undefined> {
  const { session, options, terminal, signal } = call;
  const berth = session.berth();
  if (options.flag('follow')) {
    for await (const { event, data } of berth.notifications({ signal })) {
      if (event === 'notification') print(call, data as Notification);
      if (event === 'reset')
        terminal.warn('berth: some may have been missed; berth notifications lists them');
    }
    return undefined;
  }
  const status = options.flag('all') ? undefined : ('unread' as const);
  const most = limitOption(options.text('limit'));
  const input = { query: { status, limit: Math.max(1, Math.min(MAX_PAGE, most)) } };
  const found = await collect(berth.list('listNotifications', input), most);
  terminal.list(found, { ...LISTING, empty: status === undefined ? 'None yet.' : 'Nothing unread.' });
  if (found.length > 0) terminal.hint('The text of one: berth notification show ID');
}

/** @throws CommandError for an unknown id */
async function found<T>(id: string, work: () => Promise<T>): Promise<T> {
  if (!/^ntf_[0-9a-z]{26}$/.test(id)) throw unknownId(id);
  try {
    return await work();
  } catch (error) {
    throw error instanceof BerthError && error.code === 'NOT_FOUND' ? unknownId(id) : error;
  }
}

const unknownId = (id: string) =>
  new CommandError(`there is no notification ${id}`, {
    next: 'berth notifications --all',
    exit_code: EXIT.not_found,
  });

async function show({ args, session, terminal }: Call): Promise<undefined> {
  const [id = ''] = args;
  const all = session.berth().list('listNotifications', { query: { limit: MAX_PAGE } });
  const one = (await collect(all)).find((each) => each.id === id);
  if (one === undefined) throw unknownId(id);
  terminal.one(one, {
    rows: (each) => [
      ['notification', titleOf(each)],
      ['text', each.body],
      ['severity', each.severity],
      ['kind', each.kind],
      ['when', when(each.created_at)],
      ['read', each.read_at === null ? 'no' : when(each.read_at)],
      ['about', each.resource?.id ?? '-'],
      ['id', each.id],
    ],
    quiet: (each) => each.id,
  });
}

async function read(call: Call): Promise<undefined> {
  const { args, options, session, terminal } = call;
  if (args.length > 0 === options.flag('all')) {
    throw new UsageError(
      'name notifications by their ids, as berth notifications lists them, or mark all with --all',
    );
  }
  if (options.flag('all')) return markAll(call);
  const body = { read: !options.flag('unread') };
  const berth = session.berth();
  const marked: Notification[] = [];
  for (const id of args) {
    marked.push(await found(id, () => berth.call('markNotification', { path: { id }, body })));
  }
  terminal.done(`${marked.length} marked as ${body.read ? 'read' : 'unread'}.`, marked, args.join('\n'));
}

const STATES = { on: true, off: false } as const;

async function mail(call: Call): Promise<undefined> {
  const { args, session } = call;
  const berth = session.berth();
  const [said, state] = args;
  const preferences = await berth.call('getNotificationPreferences', {});
  if (said === undefined) return listMail(call, preferences);
  const kinds = Object.keys(preferences.mail) as NotificationKind[];
  const kind = kinds.find((each) => each === said);
  if (kind === undefined) {
    const hint = didYouMean(said, kinds);
    throw new CommandError(`there is no kind of notification ${said}${hint}`, {
      next: 'berth notification mail',
      exit_code: EXIT.usage,
    });
  }
  if (state !== 'on' && state !== 'off') {
    const found = state === undefined ? 'on or off is missing' : `the state is on or off, not ${state}`;
    throw new UsageError(found);
  }
  if ((preferences.always as readonly string[]).includes(kind)) {
    if (state === 'off') throw new CommandError(`${kind} is always mailed`, { exit_code: EXIT.usage });
    return void call.terminal.done(`${kind} is always mailed.`, preferences, kind);
  }
  const set = await changeCurrent(berth, 'getNotificationPreferences', {}, (now, if_match) => {
    const free = Object.entries(now.mail).filter(
      ([each]) => !(now.always as readonly string[]).includes(each),
    );
    const wanted = { ...Object.fromEntries(free), [kind]: STATES[state] };
    return berth.call('setNotificationPreferences', { body: { mail: wanted } }, { if_match });
  });
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
      cell(always.includes(kind) ? 'always' : mailed ? 'on' : 'off', mailed || always.includes(kind)),
      preferences.descriptions[kind as NotificationKind],
    ],
    more: { headings: ['ALWAYS'], row: ([kind]) => [flagCell(always.includes(kind))] },
    quiet: ([kind]) => kind,
    empty: '',
  });
  if (terminal.format === 'human' && (await readSettings(session.url)).mail === 'files')
    terminal.warn('This server sends no mail: its mails are files in its data folder, in mail/.');
}

export const NOTIFICATION_COMMANDS: readonly Command[] = [
  {
    name: 'notification ls',
    short: ['notifications'],
    summary: 'list your unread notifications, newest first',
    example: 'berth notifications -f',
    options: {
      follow: { type: 'boolean', short: 'f', help: 'print new ones as they come, until Ctrl-C' },
      all: { type: 'boolean', help: 'read ones too' },
      limit: { type: 'string', value: 'N', help: 'how many of the newest; default: 50' },
    },
    run: list,
  },
  {
    name: 'notification show',
    args: ['ID'],
    summary: 'show a notification with its text',
    example: 'berth notification show ntf_…',
    run: show,
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
    lists: true,
    args: ['[KIND]', '[on|off]'],
    fields: { mail: 'KIND' },
    summary: 'list which kinds of notifications are also mailed to you, or change one',
    example: 'berth notification mail vm.failed off',
    run: mail,
  },
];
