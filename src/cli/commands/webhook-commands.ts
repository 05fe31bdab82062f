/** Commands on webhooks, with a live view of deliveries. */
import type { CreateWebhookRequest, Event, WebhookDelivery } from '../../../client/src/berth.ts';
import type { NameOf } from '../actor-names.ts';
import type { Call, Command } from '../command.ts';
import { whole } from '../numbers.ts';
import { collect, findNamed } from '../reading.ts';
import { ago, clock } from '../format.ts';

const WEBHOOK = { what: 'webhook', list: 'berth webhook ls' };

async function find({ session, args }: Call) {
  const berth = session.berth();
  return { berth, webhook: await findNamed(berth.list('listWebhooks', {}), args[0] ?? '', WEBHOOK) };
}

async function create(call: Call): Promise<undefined> {
  const { args, options, session, terminal } = call;
  const [url = ''] = args;
  const events = (options.list('event') ?? ['*']) as CreateWebhookRequest['events'];
  const name = options.text('name') ?? (URL.canParse(url) ? new URL(url).hostname : url);
  const made = await session.berth().createWebhook({ url, events, name });
  terminal.done(`${name} is made. Its secret, shown this once:\n${made.secret}`, made, made.secret);
}

function outcomeOf(delivery: WebhookDelivery): string {
  const last = delivery.attempts.at(-1);
  if (last === undefined) return '-';
  return last.status === null ? (last.error ?? 'no answer') : `${last.status} in ${last.latency_ms} ms`;
}

async function deliveries(call: Call): Promise<undefined> {
  const { berth, webhook } = await find(call);
  const most = whole('limit', call.options.text('limit')) ?? 50;
  const input = { path: { id: webhook.id }, query: { limit: Math.max(1, Math.min(most, 200)) } };
  call.terminal.list(await collect(berth.list('listWebhookDeliveries', input), most), {
    headings: ['ID', 'EVENT', 'STATUS', 'TRIES', 'LAST', 'CREATED'],
    row: (each) => [
      each.id,
      each.event_type ?? '-',
      each.status,
      String(each.attempt_count),
      outcomeOf(each),
      ago(each.created_at),
    ],
    quiet: ({ id }) => id,
    empty: `Nothing was sent yet. Try it: berth webhook ping ${webhook.name}`,
  });
}

/** Prints a webhook's body: a line of JSON with --json, else a summary. */
export function printEvent(
  { terminal }: Pick<Call, 'terminal'>,
  event: Event,
  nameOf: NameOf = (id) => id,
): void {
  if (terminal.format === 'json') {
    terminal.jsonLine(event);
    return;
  }
  if (terminal.format === 'quiet') {
    terminal.write(`${event.id}\n`);
    return;
  }
  const { sequence, actor } = event.data;
  const what = Object.values(event.data).find(
    (value): value is { name?: string; id?: string } =>
      typeof value === 'object' && value !== null && 'id' in value,
  );
  const about = what?.name ?? what?.id ?? '';
  const order = sequence === null ? '' : ` #${sequence}`;
  const { flush } = event.data as { flush?: { generation: number } };
  const made = flush === undefined ? '' : `  generation ${flush.generation}`;
  terminal.write(
    `${clock(event.timestamp)}  ${event.type.padEnd(26)} ${about}${order}${made}  by ${nameOf(actor)}\n`,
  );
}

async function listen(call: Call): Promise<undefined> {
  const { session, terminal, signal, options } = call;
  const type = options.text('event') as Event['type'];
  const onOpen = () => terminal.warn(`Listening at ${session.url}. Ctrl-C ends it.`);
  for await (const event of session.berth().events({ type }, { signal, onOpen })) {
    const { id, ...body } = event;
    if (terminal.format === 'human') {
      terminal.write(`webhook-id: ${id}\n${JSON.stringify(body, null, 2)}\n\n`);
    } else printEvent(call, event);
  }
}

export const WEBHOOK_COMMANDS: readonly Command[] = [
  {
    name: 'webhook create',
    args: ['URL'],
    summary: 'create a webhook, which sends events to a URL',
    example: 'berth webhook create https://hooks.example.org/berth --event vm.started --event vm.stopped',
    options: {
      event: { type: 'string', value: 'TYPE', multiple: true, help: 'only these; default: all' },
      name: { type: 'string', value: 'NAME', help: "default: the URL's host" },
    },
    run: create,
  },
  {
    name: 'webhook ls',
    summary: 'list webhooks',
    example: 'berth webhook ls',
    run: async ({ session, terminal }) => {
      terminal.list(await collect(session.berth().list('listWebhooks', {})), {
        headings: ['NAME', 'STATUS', 'EVENTS', 'URL', 'ID'],
        row: (each) => [each.name, each.status, each.events.join(' '), each.url, each.id],
        quiet: ({ id }) => id,
        empty: 'No webhooks yet. Make one: berth webhook create URL',
      });
      return undefined;
    },
  },
  {
    name: 'webhook rm',
    args: ['WEBHOOK'],
    summary: 'delete a webhook',
    example: 'berth webhook rm hooks.example.org',
    run: async (call) => {
      const { berth, webhook } = await find(call);
      await berth.call('deleteWebhook', { path: { id: webhook.id } });
      call.terminal.done(`${webhook.name} is deleted.`, { deleted: webhook.id });
      return undefined;
    },
  },
  {
    name: 'webhook ping',
    args: ['WEBHOOK'],
    summary: 'send a webhook.ping to one webhook',
    example: 'berth webhook ping hooks.example.org',
    run: async (call) => {
      const { berth, webhook } = await find(call);
      const answer = await berth.call('pingWebhook', { path: { id: webhook.id } });
      const look = `berth webhook deliveries ${webhook.name}`;
      call.terminal.done(`A ping is on its way. To see the result: ${look}`, answer, answer.event_id);
      return undefined;
    },
  },
  {
    name: 'webhook deliveries',
    args: ['WEBHOOK'],
    summary: 'list the deliveries of a webhook and the answers to them',
    example: 'berth webhook deliveries hooks.example.org',
    options: { limit: { type: 'string', value: 'N', help: 'how many of the newest; default: 50' } },
    run: deliveries,
  },
  {
    name: 'webhook redeliver',
    args: ['WEBHOOK', 'DELIVERY'],
    summary: 'send a delivery again',
    example: 'berth webhook redeliver hooks.example.org whd_…',
    run: async (call) => {
      const { berth, webhook } = await find(call);
      const path = { id: webhook.id, delivery_id: call.args[1] ?? '' };
      const answer = await berth.call('redeliverWebhookDelivery', { path });
      call.terminal.done('It is sent again.', answer, path.delivery_id);
      return undefined;
    },
  },
  {
    name: 'webhook listen',
    summary: 'print live the events that a webhook of this organisation would get, for development',
    example: 'berth webhook listen --event vm.started',
    options: { event: { type: 'string', value: 'TYPE', help: 'only this type' } },
    run: listen,
  },
];
