/** Notifications, events and audit on the command line; doctor. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { apiForFile } from '../support/api.ts';
import { Cli } from '../support/cli.ts';
import { appendNotifyingEvent, raiseNotificationsOfEvents } from '../support/notifications.ts';
import { makeKey, type Person } from '../support/people.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile();

async function somebody(): Promise<{ cli: Cli; who: Person }> {
  const who = await api.person();
  const { key } = await makeKey(api.db, who, '*');
  return { cli: new Cli({ BERTH_URL: api.origin, BERTH_API_KEY: key }), who };
}

describe('what happens', () => {
  test('notifications are listed, marked as read, and followed', async () => {
    const { cli, who } = await somebody();
    assert.equal(await cli.done('notifications'), 'Nothing unread.\n');
    await appendNotifyingEvent(api.db, who);
    await raiseNotificationsOfEvents(api.db);
    assert.match(
      await cli.done('notifications'),
      /^WHEN +SEVERITY +NOTIFICATION +ID\n20\S+ \S+ \(.*\) +info +SSH key .* ntf_\w+\n$/,
    );
    const following = cli.start(['notifications', '-f', '--json'], null);
    await until(
      'it is told',
      async () => {
        // A stream begins at its opening: one that happens after it comes.
        await appendNotifyingEvent(api.db, who);
        await raiseNotificationsOfEvents(api.db);
        return following.out().includes('"ssh_key.added"');
      },
      { every_ms: 200 },
    );
    following.child.kill('SIGINT');
    assert.equal((await following.ended).code, 130);
    const first = (await following.ended).out.split('\n')[0] ?? '';
    assert.equal((JSON.parse(first) as { kind: string }).kind, 'ssh_key.added');
    assert.match(await cli.done('notification', 'read', '--all'), /^\d+ marked as read\.\n$/);
    assert.match(await cli.fails(2, 'notifications', '--unread'), /there is no option --unread\n/);
    assert.equal(await cli.done('notifications'), 'Nothing unread.\n');
    assert.notEqual(await cli.done('notifications', '--all', '-q'), '');
  });

  test('a notification is shown with its text, and an unknown one is told from a wrong request', async () => {
    const { cli, who } = await somebody();
    await appendNotifyingEvent(api.db, who);
    await raiseNotificationsOfEvents(api.db);
    const [id = ''] = (await cli.done('notifications', '-q')).split('\n');
    assert.match(await cli.done('notification', 'show', id), /^notification +SSH key .*\ntext +\S/);
    const [listed] = JSON.parse(await cli.done('notifications', '--format', 'json')) as Record<
      string,
      unknown
    >[];
    assert.partialDeepStrictEqual(listed, { id, kind: 'ssh_key.added', count: 1, read: null });
    for (const verb of ['show', 'read']) {
      const said = await cli.fails(3, 'notification', verb, 'nope');
      assert.equal(said, 'berth: there is no notification nope\n  next: berth notifications --all\n');
    }
  });

  test('a type or an actor that there is not is an error with the nearest one, not an empty list', async () => {
    const { cli, who } = await somebody();
    await cli.done('create', 'web');
    assert.match(await cli.fails(2, 'events', '--type', 'vm.strated'), /Did you mean vm\.started\?/);
    assert.match(
      await cli.fails(2, 'audit', '--type', 'vm.strat'),
      /no action vm\.strat\. Did you mean vm\.start\?/,
    );
    assert.equal(await cli.done('audit', '--type', 'vm.stop'), 'No entries.\n');
    assert.match(await cli.fails(2, 'events', '--limit', '0'), /--limit must be at least 1\n/);
    const nobody = `${who.email}x`;
    assert.match(await cli.fails(3, 'events', '--actor', nobody), /^berth: --actor: there is no entry by /);
    assert.equal(
      await cli.fails(3, 'audit', '--actor', nobody),
      `berth: --actor: there is no entry by ${nobody}. Did you mean ${who.email}?\n  next: --actor with one of ${who.email}\n`,
    );
    assert.match(await cli.done('audit', '--actor', who.email), /instance\.create/);
    assert.equal(await cli.done('audit', '--actor', 'system'), 'No entries.\n');
    const [entry] = JSON.parse(await cli.done('audit', '--format', 'json')) as Record<string, unknown>[];
    assert.partialDeepStrictEqual(entry, {
      actor: who.user_id,
      'actor-name': who.email,
      'target-name': 'web',
    });
  });
});

describe('doctor', () => {
  test('says what is well, and for what is not the next command; 1 if anything is wrong', async () => {
    const { cli } = await somebody();
    const ran = await cli.run(['doctor']);
    assert.equal(ran.code, 1, 'no SSH key yet');
    assert.match(ran.out, /^ok {2}server +http:\/\/127\.0\.0\.1:\d+ answers$/m);
    assert.match(ran.out, /^ok {2}ready +yes$/m);
    assert.match(ran.out, /^NO {2}SSH key +none registered\n {4}next: berth ssh-key add$/m);
    // What the host's agent has found, not whether the device is there.
    assert.match(
      ran.out,
      /^- {3}KVM +not used: the hosts emulate their VMs, which is slow\n {4}next: berth host ls, /m,
    );
    assert.match(ran.out, /^ok {2}clock +agrees with the server$/m);
    assert.match(
      ran.out,
      /^! {3}mail +no mail server: .*become files on the server\n {4}next: BERTH_SMTP_URL=.*berth user reset-password/m,
    );
    await cli.run(['ssh-key', 'add', '-'], (await import('../support/people.ts')).randomPublicKey().line);
    const well = await cli.run(['doctor', '--json']);
    assert.equal(well.code, 0, well.out);
    assert.ok((JSON.parse(well.out) as { ok: boolean | null }[]).every(({ ok }) => ok !== false));
    const away = await cli.run(['doctor', '--url', 'http://127.0.0.1:1']);
    assert.equal(away.code, 1);
    assert.match(away.out, /^- {3}KVM +\/dev\/kvm (opens; not tried yet|cannot be opened)/m);
    assert.match(away.out, /^NO {2}server +http:\/\/127\.0\.0\.1:1 does not answer\n {4}next: npm start/m);
    const https = api.origin.replace('http:', 'https:');
    const no_tls = await cli.run(['doctor', '--url', https]);
    assert.match(
      no_tls.out,
      /^NO {2}server +https:\S+ does not speak TLS\n {4}next: the same address with http:/m,
    );
    const no_scheme = await cli.run(['doctor', '--url', new URL(api.origin).host]);
    assert.match(no_scheme.err, /is not the address of a server: it begins with http:\/\/ or https:\/\/\n$/);
    const misspelt = await cli.run(['doctor', '--url', 'http://berth.invalid']);
    assert.match(misspelt.out, /^NO {2}server +the name in http:\/\/berth\.invalid is not found$/m);
  });
});
