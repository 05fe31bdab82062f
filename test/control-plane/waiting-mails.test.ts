/** Mails wait in the database, sealed, until they are sent. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { beforeEach, test } from 'node:test';
import { sql } from 'kysely';
import { transaction } from '../../src/control-plane/db/pool.ts';
import { requestPasswordReset } from '../../src/control-plane/identity/reset-password.ts';
import { type SentMail, sendMails } from '../../src/control-plane/mail/send-mails.ts';
import { Mailbox, onPosted } from '../../src/control-plane/mail/store.ts';
import { createLog } from '../../src/shared/log.ts';
import { Sealer } from '../../src/shared/seal.ts';
import { apiForFile } from '../support/api.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile();
const { mailbox } = api.context;
const log = createLog('test', 'silent');
const refuse = async () => {
  throw new Error('451 try again later');
};
const waiting = () => api.db.selectFrom('mails').selectAll().execute();
const allDue = () => api.db.updateTable('mails').set({ due_at: sql`now()` }).execute();
const sendBy = (deliver: (mail: SentMail) => Promise<void>, box = mailbox) =>
  sendMails({ db: api.db, mailbox: box, deliver, log });

async function sent(): Promise<SentMail[]> {
  const out: SentMail[] = [];
  await sendBy(async (mail) => void out.push(mail));
  return out;
}

async function invite(): Promise<string> {
  const who = await api.person();
  const email = `new-${who.user_id}@example.org`;
  const path = `/v1/orgs/${who.org_id}/invitations`;
  assert.equal((await api.as(who).post(path, { email, role: 'member' })).status, 201);
  return email;
}

beforeEach(() => api.db.deleteFrom('mails').execute());

test('a mail is queued when its change is answered; the database contains neither address nor token', async () => {
  const email = await invite();
  const [row, ...others] = await waiting();
  assert.deepEqual(others, []);
  const [mail] = await sent();
  assert.equal(mail?.to, email);
  const token = /^berth_mail_\w+$/m.exec(mail.text)?.[0];
  assert.ok(token);
  for (const secret of [email, token]) assert.ok(!row?.content.includes(secret));
  assert.deepEqual(await waiting(), [], 'it was sent');
});

test('a change that is rolled back queues no mail and wakes no sender', async () => {
  let woken = 0;
  const undo = onPosted(() => {
    woken += 1;
  });
  const mail = { kind: 'invitation', to: 'ann@example.org', subject: 'One', text: 'A token.' } as const;
  const failed = transaction(api.db, async (tx) => {
    await mailbox.post(tx, mail, 60);
    throw new Error('no');
  });
  await assert.rejects(failed, /no/);
  assert.deepEqual([await waiting(), woken], [[], 0]);
  await transaction(api.db, (tx) => mailbox.post(tx, mail, 60));
  undo();
  assert.deepEqual([(await waiting()).length, woken], [1, 1]);
});

test('a failed mail is sent again later, under the same id', async () => {
  await invite();
  const ids: string[] = [];
  await sendBy(async (mail) => {
    ids.push(mail.id);
    await refuse();
  });
  assert.deepEqual(await sent(), [], 'not at once');
  await allDue();
  assert.deepEqual(
    (await sent()).map(({ id }) => id),
    ids,
  );
});

test('a mail whose sender hangs is sent by another process, once its lease is over', async () => {
  await invite();
  const stuck = Promise.withResolvers<void>();
  const taken = Promise.withResolvers<void>();
  const first = sendBy(async () => {
    taken.resolve();
    await stuck.promise;
  });
  await taken.promise;
  assert.deepEqual(await sent(), [], 'no other process takes it');
  await allDue();
  await sendBy(refuse);
  stuck.resolve();
  await first;
  assert.equal((await waiting()).length, 1, 'the late sender does not delete it');
});

test('an expired mail is not sent', async () => {
  await invite();
  await api.db.updateTable('mails').set({ expires_at: sql`now()` }).execute();
  assert.deepEqual(await sent(), []);
  assert.deepEqual(await waiting(), []);
});

test('a mail with an invalid token is not sent: its invitation was withdrawn, or its account deleted', async () => {
  const who = await api.person();
  const path = `/v1/orgs/${who.org_id}/invitations`;
  const body = { email: `new-${who.user_id}@example.org`, role: 'member' };
  const { id } = (await api.as(who).post<{ id: string }>(path, body)).body;
  assert.equal((await api.as(who).delete(`${path}/${id}`)).status, 204);
  await requestPasswordReset(api.db, mailbox, 'https://berth.example.org', who.email);
  await api.db.deleteFrom('users').where('id', '=', who.user_id).execute();
  assert.equal((await waiting()).length, 2);
  assert.deepEqual(await sent(), []);
  assert.deepEqual(await waiting(), []);
});

test('of two password resets only the later is sent; the warning of a changed address is sent in any case', async () => {
  const who = await api.person({ password: 'correct horse battery' });
  const ask = () => requestPasswordReset(api.db, mailbox, 'https://berth.example.org', who.email);
  await ask();
  const [first] = await waiting();
  await ask();
  const email = `moved-${who.user_id}@example.org`;
  await api.as(who).put('/v1/me/email', { email, password: 'correct horse battery' });
  await api.db.deleteFrom('mail_tokens').where('email', '=', email).execute();
  const out = await sent();
  assert.deepEqual(out.map(({ to, subject }) => [to, subject]).sort(), [
    [who.email, 'Reset your Berth password'],
    [who.email, 'Your Berth address is about to change'],
  ]);
  assert.ok(out.every(({ id }) => id !== first?.id));
});

test('a mail is retried until it expires', async () => {
  await invite();
  // Its next backoff could be an hour.
  const late = { attempts: 40, expires_at: sql<Date>`now() + interval '10 minutes'` };
  await api.db.updateTable('mails').set(late).execute();
  await sendBy(refuse);
  const [row] = await waiting();
  assert.ok(row && row.due_at < row.expires_at, 'there is another try');
});

test('a mail that another server key sealed waits for that key', async () => {
  const email = await invite();
  const out: string[] = [];
  const other = new Mailbox(new Sealer(randomBytes(32), 'test mails'));
  await sendBy(async ({ to }) => void out.push(to), other);
  assert.deepEqual([out.length, (await waiting()).length], [0, 1]);
  await allDue();
  assert.deepEqual(
    (await sent()).map(({ to }) => to),
    [email],
  );
});

test('a mail that cannot be sent delays no other', async () => {
  const bad = await invite();
  const good = await invite();
  const out: string[] = [];
  await sendBy(async ({ to }) => {
    if (to === bad) await refuse();
    out.push(to);
  });
  assert.deepEqual(out, [good]);
});

test('a delivery that hangs delays neither waiting mails nor new ones', async () => {
  const hung = Promise.withResolvers<void>();
  const out: string[] = [];
  for (let posted = 0; posted < 12; posted += 1) await invite();
  let first: string | undefined;
  const sending = sendBy(async ({ id, to }) => {
    first ??= id;
    if (id === first) await hung.promise;
    out.push(to);
  });
  await until('the others are out', () => out.length === 11);
  const late = await invite();
  await until('so is one that came after them', () => out.includes(late));
  hung.resolve();
  await sending;
  assert.equal(out.length, 13);
});
