/** Mail through a server, as `BERTH_SMTP_URL` names it. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { createDeliver, type SmtpTimeouts } from '../../src/control-plane/mail/send-mails.ts';
import { startSmtpServer } from '../support/smtp-server.ts';

const FROM = 'berth@example.org';
const MAIL = { to: 'ann@example.org', subject: 'Höflich', text: 'Grüße\n.\nund mehr\n', id: 'ntf_1.2' };

function deliverTo(port: number, login = '', timeouts?: SmtpTimeouts) {
  const options = { smtp_url: `smtp://${login}127.0.0.1:${port}`, folder: '/nonexistent', from: FROM };
  return createDeliver(timeouts ? { ...options, timeouts } : options);
}

test("a mail arrives unchanged, at one recipient, with its Message-ID, sent with the URL's credentials", async (t: TestContext) => {
  const { port, received } = await startSmtpServer(t);
  await deliverTo(port, 'berth:a%40secret@')(MAIL);
  const [mail, ...others] = received;
  assert.deepEqual(others, []);
  assert.deepEqual([mail?.from, mail?.to, mail?.login], [FROM, [MAIL.to], '\0berth\0a@secret']);
  const [head = '', body = ''] = mail?.message.split(/\r\n\r\n(.*)/s) ?? [];
  assert.match(head, /^Message-ID: <ntf_1\.2@example\.org>$/m);
  assert.match(head, /^Subject: =\?UTF-8\?Q\?H=C3=B6flich\?=$/m);
  assert.match(head, /^From: Berth <berth@example\.org>$/m);
  const quoted = body
    .replaceAll('=\r\n', '')
    .replace(/=([0-9A-F]{2})/g, (_, hex) => String.fromCharCode(Number.parseInt(hex, 16)));
  assert.equal(Buffer.from(quoted, 'latin1').toString().replaceAll('\r\n', '\n').trim(), MAIL.text.trim());
});

test('an address with a comma is one recipient', async (t: TestContext) => {
  const { port, received } = await startSmtpServer(t);
  await deliverTo(port)({ ...MAIL, to: '"a,b"@example.org' });
  assert.deepEqual(received[0]?.to, ['"a,b"@example.org']);
});

test('a server that refuses or is unreachable is an error', async (t: TestContext) => {
  const refusing = await startSmtpServer(t, { refuses: '451 not now' });
  await assert.rejects(deliverTo(refusing.port)(MAIL), /451 not now/);
  assert.deepEqual(refusing.received, []);
  await assert.rejects(deliverTo(1)(MAIL), /ECONNREFUSED/);
});

for (const silent_after of ['EHLO', 'RCPT', '.']) {
  test(`a server that is silent from ${silent_after} on times out`, {
    timeout: 60_000,
  }, async (t: TestContext) => {
    const { port } = await startSmtpServer(t, { silent_after });
    const soon = { connectionTimeout: 5_000, greetingTimeout: 5_000, socketTimeout: 200 };
    await assert.rejects(deliverTo(port, '', soon)(MAIL), { code: 'ETIMEDOUT' });
  });
}
