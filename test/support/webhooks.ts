/**
 * Helpers for tests of webhooks: runs senders beside an API, starts receivers that record their requests, and makes
 * webhooks, events and deliveries.
 */
import assert from 'node:assert/strict';
import { after } from 'node:test';
import { transaction } from '../../src/control-plane/db/pool.ts';
import { append, dispatchEvents, type NewEvent, onCommitted } from '../../src/control-plane/events/append.ts';
import { runTasks } from '../../src/control-plane/tasks/run-tasks.ts';
import { fanOutToWebhooks } from '../../src/control-plane/webhooks/fan-out.ts';
import { runSenders, type SendersParts } from '../../src/control-plane/webhooks/senders.ts';
import {
  type EventId,
  newId,
  type OrgId,
  type WebhookDeliveryId,
  type WebhookId,
} from '../../src/shared/ids.ts';
import { createLog } from '../../src/shared/log.ts';
import type { TestApi } from './api.ts';
import type { Page } from './client.ts';
import type { Person } from './people.ts';
import { startReceiver } from './receivers.ts';
import { until } from './waiting.ts';

export interface WebhookOut {
  readonly id: WebhookId;
  readonly url: string;
  readonly events: readonly string[];
  readonly name: string;
  readonly status: string;
  readonly disabled_reason: string | null;
  readonly disabled_at: string | null;
  readonly failing_since: string | null;
  readonly proven_at: string | null;
  readonly previous_secret_expires_at: string | null;
  readonly created_at: string;
}
export type MadeWebhook = WebhookOut & { readonly secret: string };

export interface DeliveryOut {
  readonly id: WebhookDeliveryId;
  readonly event_id: EventId;
  readonly event_type: string;
  readonly status: string;
  readonly attempt_count: number;
  readonly next_attempt_at: string | null;
  readonly attempts: readonly {
    readonly number: number;
    readonly at: string;
    readonly status: number | null;
    readonly latency_ms: number;
    readonly error: string | null;
    readonly response: string;
  }[];
}

/** Longer than any test, so that only wakes start senders. */
export const NO_POLL = { poll_ms: 3_600_000 } as const;

/** Fans events out at every commit of this process, and runs senders. Ends with the API. */
export function sendWebhooks(
  api: TestApi,
  options: Partial<Pick<SendersParts, 'log' | 'lease_s' | 'poll_ms'>> = {},
): { readonly stop: () => Promise<void> } {
  const { db, hub, webhooks } = api.context;
  const { log = createLog('webhooks', 'silent'), ...others } = options;
  const ended = new AbortController();
  const events = {
    name: 'events',
    every_ms: 1_000,
    wake_by: onCommitted,
    run: () => dispatchEvents(db, [fanOutToWebhooks]),
  };
  const running = Promise.all([
    runTasks([events], hub, log, ended.signal),
    runSenders({ db, hub, log, poll_ms: 50, ...webhooks, ...others }, ended.signal),
  ]);
  const stop = async () => {
    ended.abort();
    await running;
  };
  api.beforeClose(stop);
  return { stop };
}

export interface Got {
  readonly id: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
  readonly event: {
    readonly type: string;
    readonly timestamp: string;
    readonly data: Record<string, unknown>;
  };
}

/** The answer to the request number `nth`. */
export type Reply = (got: Got, nth: number) => Reaction | Promise<Reaction>;
export interface Reaction {
  readonly status: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: string;
}

export class Recorder {
  readonly got: Got[] = [];
  url = '';
  reply: Reply = () => ({ status: 204 });

  /** Holds back the answers to the requests that `which` picks, until the returned function is called. */
  hold(which: (got: Got, nth: number) => boolean = () => true): () => void {
    const { promise: released, resolve: release } = Promise.withResolvers<void>();
    this.reply = async (got, nth) => {
      if (which(got, nth)) await released;
      return { status: 204 };
    };
    return release;
  }

  /** Waits for `count` requests; fails if there are more. */
  async has(count: number): Promise<readonly Got[]> {
    await until(`${count} requests (${this.got.length})`, () => this.got.length >= count);
    assert.equal(this.got.length, count);
    return this.got;
  }
}

export async function startRecorder(): Promise<Recorder> {
  const recorder = new Recorder();
  const server = await startReceiver((request, response) => {
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', async () => {
      const headers = request.headers as Record<string, string>;
      const body = Buffer.concat(chunks).toString('utf8');
      const got = { id: headers['webhook-id'] ?? '', headers, body, event: JSON.parse(body) };
      recorder.got.push(got);
      const reaction = await recorder.reply(got, recorder.got.length);
      response.writeHead(reaction.status, reaction.headers).end(reaction.body);
    });
  });
  after(() => server.close());
  recorder.url = `${server.origin}/hook`;
  return recorder;
}

/** A webhook of `who` to `url`. */
export async function makeWebhook(
  api: TestApi,
  who: Person,
  url: string,
  change: Record<string, unknown> = {},
): Promise<MadeWebhook> {
  const body = { name: 'hook', url, events: ['*'], ...change };
  const made = await api.as(who).post<MadeWebhook>('/v1/webhooks', body);
  assert.equal(made.status, 201, made.text);
  return made.body;
}

/** As {@link makeWebhook}; its URL counts as one that has answered 2xx, so that several requests are sent at a time. */
export async function makeProvenWebhook(
  api: TestApi,
  who: Person,
  url: string,
  change: Record<string, unknown> = {},
): Promise<MadeWebhook> {
  const webhook = await makeWebhook(api, who, url, change);
  await api.db
    .updateTable('webhooks')
    .set({ proven_at: new Date() })
    .where('id', '=', webhook.id as WebhookId)
    .execute();
  return webhook;
}

/** A failed delivery of a new event, inserted into the database. */
export async function makeDelivery(
  { db }: TestApi,
  { org_id }: Pick<Person, 'org_id'>,
  webhook_id: WebhookId,
): Promise<WebhookDeliveryId> {
  const [event_id, id] = [newId('evt'), newId('whd')];
  await db
    .insertInto('events')
    .values({ id: event_id, org_id, type: 'member.added', data: '{}', actor: 'test' })
    .execute();
  await db
    .insertInto('webhook_deliveries')
    .values({ id, webhook_id, event_id, position: 1, state: 'failed', next_attempt_at: null })
    .execute();
  return id;
}

/** An event of the organisation with `data.n`. */
export function happen(
  api: TestApi,
  org_id: OrgId,
  n: number,
  change: Partial<NewEvent> = {},
): Promise<EventId> {
  return transaction(api.context.db, (tx) =>
    append(tx, { org_id, type: 'member.added', data: { n }, actor: 'system', ...change }),
  );
}

/** The newest event first. */
export async function deliveriesOf(
  api: TestApi,
  who: Person,
  { id }: { readonly id: string },
): Promise<readonly DeliveryOut[]> {
  const answer = await api.as(who).get<Page<DeliveryOut>>(`/v1/webhooks/${id}/deliveries?limit=200`);
  assert.equal(answer.status, 200, answer.text);
  return answer.body.data;
}

/** Waits until `condition` holds for the webhook, and returns it. */
export async function webhookWhen(
  api: TestApi,
  who: Person,
  { id }: { readonly id: string },
  what: string,
  condition: (webhook: WebhookOut) => boolean,
): Promise<WebhookOut> {
  return until(what, async () => {
    const { body } = await api.as(who).get<WebhookOut>(`/v1/webhooks/${id}`);
    return condition(body) && body;
  });
}

/** Makes deliveries with this many attempts due now, until the receiver has `count` requests. */
export async function untilRetried(
  { context: { db } }: TestApi,
  { id }: { readonly id: string },
  receiver: Recorder,
  attempts: number,
  count: number,
): Promise<void> {
  await until(`request ${count}`, async () => {
    if (receiver.got.length >= count) return true;
    await db
      .updateTable('webhook_deliveries')
      .set({ next_attempt_at: new Date(Date.now() - 3_600_000) })
      .where('webhook_id', '=', id as WebhookId)
      .where('state', '=', 'pending')
      .where('attempts', '=', attempts)
      .execute();
    return false;
  });
}
