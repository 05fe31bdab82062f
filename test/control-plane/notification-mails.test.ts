/** Mails of notifications: by preference, and always for security; after the commit, once, retried until they are sent. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { transaction } from '../../src/control-plane/db/pool.ts';
import { appendPrivate } from '../../src/control-plane/events/append.ts';
import { deleteUser } from '../../src/control-plane/identity/store.ts';
import type { SentMail } from '../../src/control-plane/mail/send-mails.ts';
import { sweep } from '../../src/control-plane/sweep.ts';
import { newId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { makeMailFolder } from '../support/mail-folder.ts';
import {
  appendNotifyingEvent,
  mailNotificationsOfEvents,
  raiseNotificationsOfEvents,
} from '../support/notifications.ts';
import { makeSudo, type Person } from '../support/people.ts';
import { instanceIn } from '../support/states.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile();
const { db, agent } = api;
const folder = await makeMailFolder();
after(() => folder.close());

const sent: SentMail[] = [];
const keep = async (mail: SentMail) => void sent.push(mail);
const to = (who: Person) => sent.filter((mail) => mail.to === who.email);
/** Notifications that wait for a mail, and mails that wait to be sent. */
const pending = () =>
  db.selectFrom('notifications').select('id').where('mail_after', 'is not', null).execute();
const mails = () => db.selectFrom('mails').selectAll().where('user_id', 'is not', null).execute();
const waiting = async () => [...(await pending()), ...(await mails())];

/** Ends all waits. */
async function letWaitsEnd(): Promise<void> {
  await sql`update notifications set mail_after = now() where mail_after > now()`.execute(db);
  await sql`update mails set due_at = now()`.execute(db);
}

test('a mail is sent once, after its commit', async () => {
  const who = await api.person();
  await appendNotifyingEvent(db, who);
  await raiseNotificationsOfEvents(db);
  assert.deepEqual(to(who), [], 'raising sends nothing');
  await Promise.all([
    mailNotificationsOfEvents(db, keep),
    mailNotificationsOfEvents(db, keep),
    mailNotificationsOfEvents(db, keep),
  ]);
  assert.equal(to(who).length, 1);
  assert.match(to(who)[0]?.text ?? '', /SHA256:x/);
  assert.deepEqual(await waiting(), []);
});

test('notifications of one kind to one user are one mail; other users and kinds get their own', async () => {
  const [who, other] = [await api.person(), await api.person()];
  for (const name of ['one', 'two', 'three'])
    await api.as(who).post('/v1/api-keys', { name, scope: 'vm:read' });
  await appendNotifyingEvent(db, who);
  await api.as(other).post('/v1/api-keys', { name: 'four', scope: 'vm:read' });
  await mailNotificationsOfEvents(db, keep);
  const [keys, ...rest] = to(who).filter(({ subject }) => /, and 2 more$/.test(subject));
  for (const name of ['one', 'two', 'three']) assert.match(keys?.text ?? '', new RegExp(`\\b${name}\\b`));
  assert.deepEqual([rest.length, to(who).length, to(other).length], [0, 2, 1]);
  assert.deepEqual(await waiting(), []);
});

test('a burst is one mail of bounded size, which says how many more there are', async () => {
  const who = await api.person();
  for (let n = 1; n <= 45; n++) {
    await api.as(who).post('/v1/api-keys', { name: `key-${n}.`, scope: 'vm:read' });
    if (n === 15 || n === 30) await raiseNotificationsOfEvents(db);
  }
  await mailNotificationsOfEvents(db, keep);
  const [mail, ...rest] = to(who);
  assert.deepEqual(rest, []);
  assert.match(mail?.subject ?? '', /^API key "key-1\." .*, and 44 more$/);
  const named = Array.from({ length: 45 }, (_, n) => `"key-${n + 1}."`);
  assert.deepEqual(
    named.filter((name) => mail?.text.includes(name)),
    named.slice(0, 20),
  );
  assert.match(mail?.text ?? '', /^And 25 more: http:\/\/127\.0\.0\.1\/notifications$/m);
  assert.deepEqual(await waiting(), []);
});

test('a mail is the same at each attempt; later notifications wait for it, and follow as one mail', async () => {
  const who = await api.person();
  const tried: SentMail[] = [];
  const away = async (mail: SentMail) => {
    tried.push(mail);
    throw new Error('connection refused');
  };
  await appendNotifyingEvent(db, who);
  await appendNotifyingEvent(db, who);
  await mailNotificationsOfEvents(db, away);
  for (let n = 0; n < 2; n++) {
    await appendNotifyingEvent(db, who);
    await mailNotificationsOfEvents(db, keep);
  }
  assert.deepEqual(to(who), []);
  await letWaitsEnd();
  await mailNotificationsOfEvents(db, keep);
  assert.deepEqual(to(who), tried);
  await mailNotificationsOfEvents(db, keep);
  assert.equal(to(who).length, 2);
  assert.match(to(who)[1]?.subject ?? '', /, and 1 more$/);
  assert.deepEqual(await waiting(), []);
});

test('a waiting mail is deleted with its account, and with its notifications', async () => {
  const [gone, who] = [await api.person(), await api.person()];
  await appendNotifyingEvent(db, gone);
  await appendNotifyingEvent(db, who);
  await raiseNotificationsOfEvents(db);
  assert.equal((await waiting()).length, 2);
  await transaction(db, (tx) => deleteUser(tx, gone.user_id));
  assert.equal((await waiting()).length, 1);
  await db.updateTable('notifications').set({ created_at: sql`now() - interval '91 days'` }).execute();
  await sweep(db);
  assert.deepEqual(await waiting(), []);
});

test('a sent mail is deleted while others are being sent', async () => {
  const [one, two] = [await api.person(), await api.person()];
  await appendNotifyingEvent(db, one);
  await appendNotifyingEvent(db, two);
  const { promise: released, resolve: release } = Promise.withResolvers<void>();
  const telling = mailNotificationsOfEvents(db, async (mail) => {
    if (mail.to === two.email) await released;
    await keep(mail);
  });
  await until('one is left', async () => (await waiting()).length === 1);
  assert.deepEqual([to(one).length, to(two).length], [1, 0]);
  release();
  await telling;
  assert.deepEqual(await waiting(), []);
});

test('a muted kind is raised, but not mailed', async () => {
  const owner = await api.person();
  const quiet = await api.person({ org_id: owner.org_id, role: 'admin' });
  await api.as(quiet).put('/v1/notifications/preferences', { mail: { 'vm.failed': false } });
  const { id } = await instanceIn(api, owner, 'running');
  await agent.failed(id);
  await mailNotificationsOfEvents(db, keep);
  assert.equal(to(owner).length, 1);
  assert.deepEqual(to(quiet), []);
  const { body } = await api.as(quiet).get<{ count: number }>('/v1/notifications/unread-count');
  assert.equal(body.count, 1);
});

test('a security kind is mailed at each repeat; another kind only when it is new', async () => {
  const who = await api.person();
  const { id } = await instanceIn(api, who, 'running');
  for (let n = 0; n < 2; n++) {
    const data = { how: 'changed' };
    await appendPrivate(db, {
      type: 'password.changed',
      org_id: null,
      user_id: who.user_id,
      data,
      actor: who.user_id,
    });
    const { vm_id, epoch } = await agent.known(id);
    await agent.client.reportFlushFailure({ vm_id, epoch, error: { code: 'flush_failed', message: 'X.' } });
    await mailNotificationsOfEvents(db, keep);
  }
  const subjects = to(who).map(({ subject }) => subject.replace(/of .* has/, 'of it has'));
  assert.deepEqual(subjects.sort(), [
    'A flush of it has failed',
    'Your password was changed',
    'Your password was changed',
  ]);
  assert.equal(new Set(to(who).map((mail) => mail.id)).size, 3, 'each is a mail of its own');
});

test('a repeat before the mail is composed is in it once', async () => {
  const who = await api.person();
  for (let n = 0; n < 22; n++) {
    await appendPrivate(db, {
      type: 'password.changed',
      org_id: null,
      user_id: who.user_id,
      data: { how: 'changed' },
      actor: who.user_id,
    });
    await raiseNotificationsOfEvents(db);
  }
  await mailNotificationsOfEvents(db, keep);
  const [mail, ...rest] = to(who);
  assert.deepEqual(rest, []);
  assert.equal(mail?.subject, 'Your password was changed');
  assert.match(mail?.text ?? '', /, 22 times so far/);
});

test('the billing address: an address that the change itself mails gets no second mail', async () => {
  const owner = await api.person();
  const admin = await api.person({ org_id: owner.org_id, role: 'admin' });
  const headers = await makeSudo(db, owner);
  const json = { email: 'bills@example.org' };
  await api.as(owner).call('PUT', `/v1/orgs/${owner.org_id}/billing-email`, { json, headers });
  await mailNotificationsOfEvents(db, keep);
  assert.equal(api.mails.filter((mail) => mail.to === owner.email).length, 1);
  assert.deepEqual(to(owner), [], 'it was the address before');
  assert.equal(to(admin).length, 1);
});

test('an invitation has one mail, and none for its notification', async () => {
  const [owner, guest] = [await api.person(), await api.person()];
  const body = { email: guest.email, role: 'member' };
  await api.as(owner).post(`/v1/orgs/${owner.org_id}/invitations`, body);
  await mailNotificationsOfEvents(db, keep);
  assert.equal(api.mails.filter((mail) => mail.to === guest.email).length, 1);
  assert.deepEqual(to(guest), []);
});

test('a failed mail is retried, delays no other, and expires after a day', async () => {
  const [one, two] = [await api.person(), await api.person()];
  await appendNotifyingEvent(db, one);
  await appendNotifyingEvent(db, two);
  const away = async (mail: SentMail) => {
    if (mail.to === one.email) throw new Error('connection refused');
    await keep(mail);
  };
  await mailNotificationsOfEvents(db, away);
  assert.deepEqual([to(one).length, to(two).length], [0, 1]);
  const [left] = await mails();
  assert.ok(left && left.attempts === 1 && left.due_at.getTime() > Date.now());
  await mailNotificationsOfEvents(db, keep);
  assert.equal(to(one).length, 0, 'not before its time');
  await letWaitsEnd();
  await mailNotificationsOfEvents(db, keep);
  assert.equal(to(one).length, 1);
  await appendNotifyingEvent(db, one);
  await mailNotificationsOfEvents(db, away);
  const [late] = await mails();
  const hours_left = ((late?.expires_at.getTime() ?? 0) - Date.now()) / 3_600_000;
  assert.ok(hours_left > 23.9 && hours_left <= 24, `${hours_left} hours`);
  await letWaitsEnd();
  await sql`update mails set expires_at = now()`.execute(db);
  await mailNotificationsOfEvents(db, away);
  assert.deepEqual(await waiting(), []);
});

test('a notification that is raised during the sending of a mail is in the next one', async () => {
  const who = await api.person();
  const again = () =>
    appendPrivate(db, {
      type: 'password.changed',
      org_id: null,
      user_id: who.user_id,
      data: { how: 'changed' },
      actor: who.user_id,
    });
  await again();
  let first = true;
  await mailNotificationsOfEvents(db, async (mail) => {
    if (first) {
      first = false;
      await again();
      await raiseNotificationsOfEvents(db);
    }
    await keep(mail);
  });
  await mailNotificationsOfEvents(db, keep);
  assert.equal(to(who).length, 2);
});

test('as a file: each attempt of a mail is the same file', async () => {
  const who = await api.person();
  const mail = { to: who.email, subject: 'Grüße', text: 'Hello', id: newId('mail') };
  await folder.deliver(mail);
  await folder.deliver(mail);
  const [text, ...more] = await folder.to(who.email);
  assert.deepEqual(more, []);
  assert.ok(text?.includes(`Message-ID: <${mail.id}@example.org>`), text);
});
