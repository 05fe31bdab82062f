/**
 * The commands on webhooks and their deliveries. `berth webhook listen` prints the events that a webhook would get, as
 * they happen.
 */
import type {
  Berth,
  CreateWebhookRequest,
  Event,
  Webhook,
  WebhookDelivery,
  WebhookDeliveryDetail,
} from '../../../client/src/berth.ts';
import type { Call, Command, Option } from '../command.ts';
import { UsageError } from '../command-error.ts';
import { collect, findNamed, type ResourceKind, warnOfNamesakes } from '../reading.ts';
import { ago, cell, fields, localTime, numberCell, timeCell, when } from '../table.ts';
import { durationOption, EVENT_TYPES, limitOption, timeOption } from '../values.ts';

export const WEBHOOK: ResourceKind<Webhook> = {
  what: 'webhook',
  list: 'berth webhook ls',
  detail: ({ url, events, created_at }) => `${url}, ${events.join(' ')}, created ${ago(created_at)}`,
};

/** The webhook that the first argument names, by name or id. @throws CommandError */
async function webhookOf({
  session,
  args,
}: Pick<Call, 'session' | 'args'>): Promise<{ readonly berth: Berth; readonly webhook: Webhook }> {
  const berth = session.berth();
  return { berth, webhook: await findNamed(berth.list('listWebhooks', {}), args[0] ?? '', WEBHOOK) };
}

const STATUSES = ['pending', 'delivered', 'failed'] as const;
type Attempt = WebhookDelivery['attempts'][number];

function outcomeOf({ status, error, latency_ms }: Attempt): string {
  return status === null ? `${error ?? 'no answer'} (${latency_ms} ms)` : `${status} in ${latency_ms} ms`;
}

/** `vm.started web` */
function eventOf({ event_type, resource }: WebhookDelivery): string {
  if (event_type === null) return 'expired, after 30 days';
  return resource === null ? event_type : `${event_type} ${resource.name ?? resource.id}`;
}

const indented = (text: string) => text.replace(/^(?=.)/gm, '  ');
const headerLines = (headers: Readonly<Record<string, string>>) =>
  Object.entries(headers).map(([name, value]) => `${name}: ${value}`);

/** JSON on several lines, anything else as it is. */
function readable(body: string): string {
  try {
    return JSON.stringify(JSON.parse(body), null, 2);
  } catch {
    return body;
  }
}

function requestLines({ request, attempts }: WebhookDeliveryDetail): readonly string[] {
  if (request === null) return ['Request: no longer known, because its event is older than 30 days'];
  const { method, url, headers, body } = request;
  return [
    attempts.length === 0 ? 'Request, as it would be sent now:' : 'Request of the last attempt:',
    indented([`${method} ${url}`, ...headerLines(headers), '', readable(body)].join('\n')),
  ];
}

function attemptLines(attempt: WebhookDeliveryDetail['attempts'][number], request_url: string | null) {
  const { number, at, url, error, status, response_headers, response } = attempt;
  const why = error === null || status === null ? '' : ` (${error})`;
  const where = url === request_url ? '' : ` to ${url}`;
  const answer = [...headerLines(response_headers), ...(response === '' ? [] : ['', response])];
  return [
    `Attempt ${number}${where}, ${when(at)}: ${outcomeOf(attempt)}${why}`,
    ...(answer.length === 0 ? [] : [indented(answer.join('\n'))]),
  ];
}

function text(delivery: WebhookDeliveryDetail): string {
  const { id, event_id, status, attempts, attempt_count, next_attempt_at, created_at } = delivery;
  const next = next_attempt_at === null ? [] : [['next attempt', localTime(next_attempt_at)] as const];
  const head = fields([
    ['delivery', id],
    ['event', eventOf(delivery)],
    ['webhook-id', event_id],
    ['status', status],
    ['attempts', String(attempt_count)],
    ...next,
    ['created', when(created_at)],
  ]);
  const url = delivery.request?.url ?? null;
  const parts = [requestLines(delivery), ...attempts.map((each) => attemptLines(each, url))];
  return [head, ...parts.map((lines) => `${lines.join('\n')}\n`)].join('\n');
}

type Events = CreateWebhookRequest['events'];

const EVENT: Option = {
  type: 'string',
  value: 'TYPE',
  multiple: true,
  field: 'events',
  choices: [...EVENT_TYPES, '*'],
  help: 'only events of this type, repeatable; * for all types; default: all',
};

async function create(call: Call): Promise<undefined> {
  const { args, options, session, terminal } = call;
  const [url = ''] = args;
  const events = (options.list('event') ?? ['*']) as Events;
  const name = options.text('name') ?? (URL.canParse(url) ? new URL(url).hostname : url);
  const berth = session.berth();
  const made = await berth.createWebhook({ url, events, name });
  const sentence = `Created ${name} (${made.id}). Its secret, shown only once:\n${made.secret}`;
  terminal.done(sentence, made, made.secret);
  await warnOfNamesakes(call, berth.list('listWebhooks', {}), made, WEBHOOK);
}

/** `enabled`, `failing`, `disabled (gone)` */
function statusOf({ status, disabled_reason, failing_since }: Webhook): string {
  if (status === 'disabled') return `disabled (${disabled_reason})`;
  return failing_since === null ? status : 'failing';
}

const timeOf = (time: string | null) => (time === null ? '-' : when(time));

async function show(call: Call): Promise<undefined> {
  const { webhook } = await webhookOf(call);
  call.terminal.one(webhook, {
    rows: (each) => [
      ['name', each.name],
      ['id', each.id],
      ['URL', each.url],
      ['events', each.events.join(' ')],
      ['status', statusOf(each)],
      ...(each.disabled_at === null ? [] : [['disabled', when(each.disabled_at)] as const]),
      ...(each.failing_since === null ? [] : [['failing since', when(each.failing_since)] as const]),
      ['first success', timeOf(each.proven_at)],
      ['previous secret valid until', timeOf(each.previous_secret_expires_at)],
      ['created', when(each.created_at)],
      ['updated', when(each.updated_at)],
    ],
    quiet: ({ id }) => id,
  });
}

async function edit(call: Call): Promise<undefined> {
  const { args, options } = call;
  const body = {
    name: options.text('name'),
    url: args[1],
    events: options.list('event') as Events | undefined,
  };
  if (Object.values(body).every((each) => each === undefined))
    throw new UsageError('nothing to change: give a URL, --name or --event');
  const { berth, webhook } = await webhookOf(call);
  const changed = await berth.call('changeWebhook', { path: { id: webhook.id }, body });
  call.terminal.done(`Changed ${changed.name}.`, changed, changed.id);
}

async function setStatus(call: Call, status: 'enabled' | 'disabled'): Promise<undefined> {
  const { berth, webhook } = await webhookOf(call);
  const changed = await berth.call('changeWebhook', { path: { id: webhook.id }, body: { status } });
  const { name } = changed;
  const sentence =
    status === 'enabled'
      ? `Enabled ${name}. To send what it missed: berth webhook replay ${name} --since 24h`
      : `Disabled ${name}. It gets no events until: berth webhook enable ${name}`;
  call.terminal.done(sentence, changed, changed.id);
}

async function rotateSecret(call: Call): Promise<undefined> {
  const grace_seconds = durationOption('grace', call.options.text('grace'));
  const { berth, webhook } = await webhookOf(call);
  const body = { grace_seconds };
  const made = await berth.call('rotateWebhookSecret', { path: { id: webhook.id }, body });
  const until = made.previous_secret_expires_at;
  const previous =
    until === null
      ? 'The previous secret is no longer used.'
      : `The previous secret signs too until ${when(until)}.`;
  const sentence = `New secret of ${made.name}, shown only once:\n${made.secret}\n${previous}`;
  call.terminal.done(sentence, made, made.secret);
}

async function replay(call: Call): Promise<undefined> {
  const since = timeOption('since', call.options.text('since'));
  if (since === undefined) throw new UsageError('--since is missing, such as --since 24h');
  const { berth, webhook } = await webhookOf(call);
  const answer = await berth.call('replayWebhook', { path: { id: webhook.id }, body: { since } });
  const { count } = answer;
  const sentence =
    count === 0
      ? `${webhook.name} wants no event since ${when(since)}.`
      : `Sending ${count} events again. To see the result: berth webhook deliveries ${webhook.name}`;
  call.terminal.done(sentence, answer, String(count));
}

async function listen(call: Call): Promise<undefined> {
  const { session, terminal, signal, options } = call;
  const type = options.text('event') as Event['type'];
  const onOpen = () => terminal.warn(`Listening at ${session.url}. Ctrl-C ends it.`);
  for await (const event of session.berth().events({ type }, { signal, onOpen })) {
    // What a webhook is sent: its body has neither the id nor the actor's name.
    const { id, actor_name: _, ...body } = event;
    if (terminal.format === 'json') terminal.jsonLine(event);
    else if (terminal.format === 'quiet') terminal.write(`${id}\n`);
    else terminal.write(`webhook-id: ${id}\n${JSON.stringify(body, null, 2)}\n\n`);
  }
}

async function ping(call: Call): Promise<undefined> {
  const { berth, webhook } = await webhookOf(call);
  const answer = await berth.call('pingWebhook', { path: { id: webhook.id } });
  const look = `berth webhook deliveries ${webhook.name}`;
  call.terminal.done(`Sending a ping. To see the result: ${look}`, answer, answer.event_id);
}

async function list({ session, terminal }: Call): Promise<undefined> {
  terminal.list(await collect(session.berth().list('listWebhooks', {})), {
    headings: ['NAME', 'STATUS', 'EVENTS', 'URL', 'CREATED', 'ID'],
    row: (each) => [
      each.name,
      cell(statusOf(each), each.status),
      each.events.join(' '),
      each.url,
      timeCell(each.created_at),
      each.id,
    ],
    more: {
      headings: ['FAILING SINCE', 'DISABLED', 'DISABLED REASON'],
      row: ({ failing_since, disabled_at, disabled_reason }) => [
        timeCell(failing_since),
        timeCell(disabled_at),
        disabled_reason ?? '-',
      ],
    },
    quiet: ({ id }) => id,
    empty: 'No webhooks yet. Create one: berth webhook create URL',
  });
}

async function remove(call: Call): Promise<undefined> {
  const { berth, webhook } = await webhookOf(call);
  await berth.call('deleteWebhook', { path: { id: webhook.id } });
  call.terminal.done(`Deleted ${webhook.name}.`, { deleted: webhook.id }, webhook.id);
}

const ARGS = ['WEBHOOK'] as const;

export const WEBHOOK_COMMANDS: readonly Command[] = [
  {
    name: 'webhook create',
    args: ['URL'],
    summary: 'create a webhook, which sends events to a URL',
    example: 'berth webhook create https://hooks.example.org/berth --event vm.started --event vm.stopped',
    options: { event: EVENT, name: { type: 'string', value: 'NAME', help: "default: the URL's host" } },
    run: create,
  },
  { name: 'webhook ls', summary: 'list webhooks', example: 'berth webhook ls', run: list },
  {
    name: 'webhook show',
    args: ARGS,
    summary: 'show a webhook: its URL, events and status',
    example: 'berth webhook show hooks.example.org',
    run: show,
  },
  {
    name: 'webhook edit',
    args: ['WEBHOOK', '[URL]'],
    summary: "change a webhook's URL, name or events",
    example: 'berth webhook edit hooks.example.org https://hooks.example.org/new --event vm.failed',
    options: {
      name: { type: 'string', value: 'NAME', help: 'its new name' },
      event: { ...EVENT, help: 'the types that it gets from now on, repeatable; * for all types' },
    },
    run: edit,
  },
  {
    name: 'webhook enable',
    args: ARGS,
    summary: 'send events to a disabled webhook again',
    example: 'berth webhook enable hooks.example.org',
    run: (call) => setStatus(call, 'enabled'),
  },
  {
    name: 'webhook disable',
    args: ARGS,
    summary: 'send no more events to a webhook; its pending deliveries fail',
    example: 'berth webhook disable hooks.example.org',
    run: (call) => setStatus(call, 'disabled'),
  },
  {
    name: 'webhook rotate-secret',
    args: ARGS,
    summary: 'give a webhook a new secret; for a grace period both secrets sign',
    example: 'berth webhook rotate-secret hooks.example.org --grace 1h',
    options: {
      grace: {
        type: 'string',
        value: 'DURATION',
        field: 'grace_seconds',
        help: 'how long the previous secret signs too, up to 7d; default: 24h',
      },
    },
    run: rotateSecret,
  },
  {
    name: 'webhook rm',
    args: ARGS,
    summary: 'delete a webhook',
    example: 'berth webhook rm hooks.example.org',
    run: remove,
  },
  {
    name: 'webhook ping',
    args: ARGS,
    summary: 'send a webhook.ping to one webhook',
    example: 'berth webhook ping hooks.example.org',
    run: ping,
  },
  {
    name: 'webhook deliveries',
    lists: true,
    args: ['WEBHOOK'],
    summary: 'list the deliveries of a webhook, the newest events first',
    example: 'berth webhook deliveries hooks.example.org --status failed',
    options: {
      status: { type: 'string', value: 'STATUS', choices: STATUSES, help: `only ${STATUSES.join(', ')}` },
      limit: { type: 'string', value: 'N', help: 'how many of the newest; default: 50' },
    },
    run: async (call) => {
      const most = limitOption(call.options.text('limit'));
      const status = call.options.text('status') as (typeof STATUSES)[number] | undefined;
      const { berth, webhook } = await webhookOf(call);
      const query = { status, limit: Math.max(1, Math.min(most, 200)) };
      const input = { path: { id: webhook.id }, query };
      call.terminal.list(await collect(berth.list('listWebhookDeliveries', input), most), {
        headings: ['CREATED', 'EVENT', 'STATUS', 'ATTEMPTS', 'LAST ATTEMPT', 'ID'],
        row: (each) => {
          const last = each.attempts.at(-1);
          return [
            timeCell(each.created_at),
            cell(eventOf(each), each.event_type),
            each.status,
            numberCell(each.attempt_count),
            cell(last === undefined ? '-' : outcomeOf(last), last?.at ?? null),
            each.id,
          ];
        },
        more: {
          headings: ['EVENT ID', 'RESOURCE', 'HTTP STATUS', 'LATENCY MS', 'ERROR'],
          row: ({ event_id, resource, attempts }) => {
            const last = attempts.at(-1);
            return [
              event_id,
              resource?.id ?? '-',
              numberCell(last?.status ?? null),
              numberCell(last?.latency_ms ?? null),
              last?.error ?? '-',
            ];
          },
        },
        quiet: ({ id }) => id,
        empty:
          status === undefined
            ? `No deliveries yet. Send one: berth webhook ping ${webhook.name}`
            : `No ${status} deliveries.`,
      });
    },
  },
  {
    name: 'webhook delivery',
    args: ['WEBHOOK', 'DELIVERY'],
    summary: 'show a delivery: its event, its request, and the answer to each attempt',
    example: 'berth webhook delivery hooks.example.org whd_…',
    run: async (call) => {
      const { berth, webhook } = await webhookOf(call);
      const path = { id: webhook.id, delivery_id: call.args[1] ?? '' };
      const delivery = await berth.call('getWebhookDelivery', { path });
      if (call.terminal.format === 'human') call.terminal.write(text(delivery));
      else call.terminal.done('', delivery, delivery.id);
    },
  },
  {
    name: 'webhook redeliver',
    args: ['WEBHOOK', 'DELIVERY'],
    summary: 'send a delivery again',
    example: 'berth webhook redeliver hooks.example.org whd_…',
    run: async (call) => {
      const { berth, webhook } = await webhookOf(call);
      const path = { id: webhook.id, delivery_id: call.args[1] ?? '' };
      const answer = await berth.call('redeliverWebhookDelivery', { path });
      const look = `berth webhook delivery ${webhook.name} ${path.delivery_id}`;
      call.terminal.done(`Sending it again. To see the result: ${look}`, answer, path.delivery_id);
    },
  },
  {
    name: 'webhook replay',
    args: ARGS,
    summary: 'send all events since a time again, also those that a disabled webhook missed',
    example: 'berth webhook replay hooks.example.org --since 24h',
    options: {
      since: { type: 'string', value: 'TIME', help: 'a duration such as 24h, or a time; up to 27d ago' },
    },
    run: replay,
  },
  {
    name: 'webhook listen',
    summary: 'print the events that a webhook of this organisation would get, as they happen',
    example: 'berth webhook listen --event vm.started',
    options: {
      event: { type: 'string', value: 'TYPE', choices: EVENT_TYPES, help: 'only this type' },
    },
    run: listen,
  },
];
