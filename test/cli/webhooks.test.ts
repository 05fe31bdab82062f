/** Webhooks and their deliveries on the command line. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { apiForFile } from '../support/api.ts';
import { Cli } from '../support/cli.ts';
import { raiseNotificationsOfEvents } from '../support/notifications.ts';
import { makeKey, type Person } from '../support/people.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile();
const URL_ = 'https://hooks.example.org/berth';

async function somebody(): Promise<{ cli: Cli; who: Person }> {
  const who = await api.person();
  const { key } = await makeKey(api.db, who, '*');
  return { cli: new Cli({ BERTH_URL: api.origin, BERTH_API_KEY: key }), who };
}

describe('webhooks', () => {
  test('create prints the secret once; ls, ping, deliveries, redeliver and rm take the name', async () => {
    const { cli } = await somebody();
    assert.match(
      await cli.done('webhook', 'create', URL_, '--event', 'vm.started'),
      /^Created hooks\.example\.org \(wh_\w+\)\..*:\nwhsec_\S+\n$/,
    );
    const list = await cli.done('webhook', 'ls');
    assert.match(list, /^hooks\.example\.org +enabled +vm\.started +https:\/\/hooks/m);
    assert.ok(!list.includes('whsec_'));
    assert.match(
      await cli.done('webhook', 'deliveries', 'hooks.example.org'),
      /^No deliveries yet\. Send one: berth webhook ping hooks\.example\.org\n$/,
    );
    assert.match(await cli.done('webhook', 'ping', 'hooks.example.org', '-q'), /^evt_\w+\n$/);
    await raiseNotificationsOfEvents(api.db);
    assert.match(
      await cli.fails(3, 'webhook', 'redeliver', 'hooks.example.org', 'whd_nothing'),
      /^berth: .*\n {2}next: berth webhook deliveries hooks\.example\.org\n/,
    );
    assert.equal(await cli.done('webhook', 'rm', 'hooks.example.org'), 'Deleted hooks.example.org.\n');
    assert.equal(await cli.done('webhook', 'ls'), 'No webhooks yet. Create one: berth webhook create URL\n');
    assert.match(
      await cli.fails(2, 'webhook', 'create', 'nonsense'),
      /^berth: URL .*\n {2}next: .*berth webhook listen/,
    );
  });

  test('edit, disable, enable, rotate-secret and replay do what the console can', async () => {
    const { cli } = await somebody();
    await cli.done('webhook', 'create', URL_, '--name', 'bot');
    const shown = async () => (await cli.json<Record<string, unknown>>('webhook', 'show', 'bot')) ?? {};
    assert.equal(
      await cli.done('webhook', 'edit', 'bot', `${URL_}/2`, '--event', 'vm.started', '--event', 'vm.failed'),
      'Changed bot.\n',
    );
    assert.deepEqual((await shown())['events'], ['vm.started', 'vm.failed']);
    assert.equal((await shown())['url'], `${URL_}/2`);
    assert.match(
      await cli.fails(2, 'webhook', 'edit', 'bot'),
      /nothing to change: give a URL, --name or --event/,
    );
    assert.match(
      await cli.done('webhook', 'disable', 'bot'),
      /^Disabled bot\. .* berth webhook enable bot\n$/,
    );
    assert.match(await cli.done('webhook', 'ls'), /^bot +disabled \(requested\) /m);
    assert.match(await cli.fails(5, 'webhook', 'ping', 'bot'), /next: berth webhook enable bot\n/);
    assert.match(
      await cli.done('webhook', 'enable', 'bot'),
      /^Enabled bot\. .* berth webhook replay bot --since 24h\n$/,
    );
    const rotated = await cli.done('webhook', 'rotate-secret', 'bot', '--grace', '1h');
    assert.match(
      rotated,
      /^New secret of bot, shown only once:\nwhsec_\S+\nThe previous secret signs too until 20\d\d-.* \(in 60 min\)\.\n$/,
    );
    const at_once = await cli.done('webhook', 'rotate-secret', 'bot', '--grace', '0');
    assert.match(at_once, /\nThe previous secret is no longer used\.\n$/);
    assert.match(await cli.done('webhook', 'rotate-secret', 'bot', '-q'), /^whsec_\S+\n$/);
    assert.match(
      await cli.fails(2, 'webhook', 'rotate-secret', 'bot', '--grace', 'soon'),
      /--grace takes a duration/,
    );
    assert.match(await cli.fails(2, 'webhook', 'replay', 'bot'), /--since is missing/);
    assert.match(await cli.done('webhook', 'replay', 'bot', '--since', '1h'), /^bot wants no event since 20/);
  });

  test('a delivery is shown with its event, its request and its answers', async () => {
    const { cli, who } = await somebody();
    await cli.done('webhook', 'create', URL_, '--name', 'robot');
    await api.instance(who, { name: 'web' });
    await raiseNotificationsOfEvents(api.db);
    assert.match(
      await cli.done('webhook', 'replay', 'robot', '--since', '1h'),
      /^Sending [1-9]\d* events again\. To see the result: berth webhook deliveries robot\n$/,
    );
    const list = await cli.done('webhook', 'deliveries', 'robot', '--status', 'pending');
    const [, id = ''] = /^20.* instance\.created web +pending +0 +- +(whd_\w+)$/m.exec(list) ?? [];
    const one = await cli.done('webhook', 'delivery', 'robot', id);
    assert.match(one, /^event +instance\.created web$/m);
    assert.match(one, /^Request, as it would be sent now:\n {2}POST https:\/\/hooks\.example\.org\/berth\n/m);
    assert.match(one, /^ {2}webhook-signature: v1,\S+$/m);
    assert.match(one, /^ {4}"type": "instance\.created",$/m);
    const raw = await cli.json<{ request: { body: string } }>('webhook', 'delivery', 'robot', id);
    assert.equal(JSON.parse(raw.request.body).data.instance.name, 'web');
    assert.equal(
      await cli.done('webhook', 'deliveries', 'robot', '--status', 'failed'),
      'No failed deliveries.\n',
    );
    assert.match(
      await cli.fails(2, 'webhook', 'deliveries', 'robot', '--status', 'x'),
      /--status takes pending/,
    );
    assert.match(
      await cli.fails(3, 'webhook', 'delivery', 'robot', 'whd_nothing'),
      /next: berth webhook deliveries robot\n/,
    );
  });

  test('listen prints this organisation’s events as they come, until Ctrl-C', async () => {
    const { cli, who } = await somebody();
    const stranger = await api.person();
    const listening = cli.start(['webhook', 'listen', '--event', 'instance.created'], null);
    await until('it listens', () => listening.err().includes('Listening at'));
    await api.instance(stranger);
    const { id } = await api.instance(who);
    await raiseNotificationsOfEvents(api.db);
    await until('it is printed', () => listening.out().includes(id));
    listening.child.kill('SIGINT');
    const { code, out } = await listening.ended;
    assert.equal(code, 130);
    assert.equal(out.match(/^webhook-id: evt_\w+$/gm)?.length, 1);
    assert.match(out, /^ {2}"type": "instance\.created",$/m);
  });
});
