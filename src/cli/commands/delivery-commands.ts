/** Commands on a webhook's deliveries: list them, show one with its request and answers, send it again. */
import type { WebhookDelivery, WebhookDeliveryDetail } from '../../../client/src/berth.ts';
import type { Command } from '../command.ts';
import { UsageError } from '../command-error.ts';
import { limitOf } from '../numbers.ts';
import { collect } from '../reading.ts';
import { cell, fields, localTime, numberCell, timeCell, when } from '../table.ts';
import { findWebhook } from './find-webhook.ts';

const STATUSES = ['pending', 'delivered', 'failed'] as const;
type Status = (typeof STATUSES)[number];

function statusOption(text: string | undefined): Status | undefined {
  const status = STATUSES.find((each) => each === text);
  if (text !== undefined && status === undefined)
    throw new UsageError(`--status takes ${STATUSES.join(', ')}, not ${text}`);
  return status;
}

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

export const DELIVERY_COMMANDS: readonly Command[] = [
  {
    name: 'webhook deliveries',
    lists: true,
    args: ['WEBHOOK'],
    summary: 'list the deliveries of a webhook, the newest events first',
    example: 'berth webhook deliveries hooks.example.org --status failed',
    options: {
      status: { type: 'string', value: 'STATUS', help: `only ${STATUSES.join(', ')}` },
      limit: { type: 'string', value: 'N', help: 'how many of the newest; default: 50' },
    },
    run: async (call) => {
      const most = limitOf(call.options.text('limit'));
      const status = statusOption(call.options.text('status'));
      const { berth, webhook } = await findWebhook(call);
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
      return undefined;
    },
  },
  {
    name: 'webhook delivery',
    args: ['WEBHOOK', 'DELIVERY'],
    summary: 'show a delivery: its event, its request, and the answer to each attempt',
    example: 'berth webhook delivery hooks.example.org whd_…',
    run: async (call) => {
      const { berth, webhook } = await findWebhook(call);
      const path = { id: webhook.id, delivery_id: call.args[1] ?? '' };
      const delivery = await berth.call('getWebhookDelivery', { path });
      if (call.terminal.format === 'human') call.terminal.write(text(delivery));
      else call.terminal.done('', delivery, delivery.id);
      return undefined;
    },
  },
  {
    name: 'webhook redeliver',
    args: ['WEBHOOK', 'DELIVERY'],
    summary: 'send a delivery again',
    example: 'berth webhook redeliver hooks.example.org whd_…',
    run: async (call) => {
      const { berth, webhook } = await findWebhook(call);
      const path = { id: webhook.id, delivery_id: call.args[1] ?? '' };
      const answer = await berth.call('redeliverWebhookDelivery', { path });
      const look = `berth webhook delivery ${webhook.name} ${path.delivery_id}`;
      call.terminal.done(`Sending it again. To see the result: ${look}`, answer, path.delivery_id);
      return undefined;
    },
  },
];
