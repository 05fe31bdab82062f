/**
 * Makes messages to receivers of webhooks, genuine and forged, with which tests check each client's verification. The
 * specification's own library signs them.
 */
import { randomBytes } from 'node:crypto';
import { Webhook } from 'standardwebhooks';

export interface WebhookVector {
  readonly does: string;
  readonly secrets: readonly string[];
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
  readonly is_genuine: boolean;
}

export const newSecret = () => `whsec_${randomBytes(32).toString('base64')}`;
export const BODY = '{"type":"vm.started","timestamp":"2026-01-01T00:00:00.000Z","data":{"name":"wéb"}}';
const seconds = () => Math.floor(Date.now() / 1_000);

export function signed(by: readonly string[], at = seconds()): Record<string, string> {
  return {
    'webhook-id': 'evt_1',
    'webhook-timestamp': String(at),
    'webhook-signature': by
      .map((each) => new Webhook(each).sign('evt_1', new Date(at * 1_000), BODY))
      .join(' '),
  };
}

export function webhookVectors(): readonly WebhookVector[] {
  const [secret, next] = [newSecret(), newSecret()];
  const headers = signed([secret]);
  const vector = (does: string, is_genuine: boolean, change: Partial<WebhookVector> = {}): WebhookVector => ({
    ...{ does, secrets: [secret], headers, body: BODY, is_genuine },
    ...change,
  });
  const withHeader = (name: string, value: string) => ({ headers: { ...headers, [name]: value } });
  const v2 = `v2,${headers['webhook-signature']?.slice(3)}`;
  return [
    vector('a genuine message', true),
    vector('signed with two secrets, of which the receiver has the new one', true, {
      secrets: [next],
      headers: signed([secret, next]),
    }),
    vector('signed with the new secret, while the receiver has both', true, {
      secrets: [secret, next],
      headers: signed([next]),
    }),
    vector('another secret', false, { secrets: [newSecret()] }),
    vector('a changed byte', false, { body: BODY.replace('started', 'stopped') }),
    vector('another id', false, withHeader('webhook-id', 'evt_2')),
    vector('another time', false, withHeader('webhook-timestamp', String(seconds() + 1))),
    vector('no time', false, withHeader('webhook-timestamp', 'soon')),
    vector('an old message', false, { headers: signed([secret], seconds() - 302) }),
    vector('a message from the future', false, { headers: signed([secret], seconds() + 302) }),
    ...Object.keys(headers).map((name) =>
      vector(`no ${name}`, false, {
        headers: Object.fromEntries(Object.entries(headers).filter(([each]) => each !== name)),
      }),
    ),
    ...['', 'v1', 'v1,', 'v1,%%%', v2].map((odd) =>
      vector(`the signature ${odd.slice(0, 8)}`, false, withHeader('webhook-signature', odd)),
    ),
  ];
}
