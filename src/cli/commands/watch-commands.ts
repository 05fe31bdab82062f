/** Commands on events and the audit log. */
import type { Event } from '../../../client/src/berth.ts';
import { actorNames, targetNames } from '../actor-names.ts';
import type { Call, Command } from '../command.ts';
import { whole } from '../numbers.ts';
import { collect } from '../reading.ts';
import { printEvent } from './webhook-commands.ts';

const LIMIT = {
  limit: { type: 'string', value: 'N', help: 'how many of the newest; default: 50' },
} as const;
const FOLLOW = {
  follow: { type: 'boolean', short: 'f', help: 'then print new ones as they come, until Ctrl-C' },
} as const;

const mostOf = ({ options }: Call) => whole('limit', options.text('limit')) ?? 50;

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
