/** Events and the audit log on the command line: sentences, names and filters. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { apiForFile } from '../support/api.ts';
import { Cli } from '../support/cli.ts';
import { raiseNotificationsOfEvents } from '../support/notifications.ts';
import { makeKey, type Person } from '../support/people.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile();

async function somebody(): Promise<{ cli: Cli; who: Person }> {
  const who = await api.person();
  const { key } = await makeKey(api.db, who, '*');
  return { cli: new Cli({ BERTH_URL: api.origin, BERTH_API_KEY: key }), who };
}

describe('events and audit', () => {
  test('events are sentences, newest first, of one instance, type, actor or time where asked', async () => {
    const { cli, who } = await somebody();
    const { name } = await api.instance(who);
    const other = await api.instance(who);
    await raiseNotificationsOfEvents(api.db);
    const [heading, ...lines] = (await cli.done('events')).trim().split('\n');
    assert.match(heading ?? '', /^WHEN +TYPE +EVENT$/);
    assert.equal(lines.length, 2);
    const sentence = (of: string) => `${who.email} created ${of}`;
    const time = '^20\\d\\d-\\d\\d-\\d\\d \\d\\d:\\d\\d \\((just now|\\d+ s ago)\\)';
    assert.match(lines[0] ?? '', new RegExp(`${time} +instance\\.created +${sentence(other.name)}$`));
    assert.match(lines[1] ?? '', new RegExp(`${sentence(name)}$`));
    const count = async (...words: string[]) => (await cli.json<unknown[]>('events', ...words)).length;
    assert.equal(await count('--instance', name), 1);
    assert.equal(await count('--since', '1h', '--type', 'instance.created', '--actor', who.email), 2);
    assert.equal(await count('--until', '1h'), 0);
    assert.equal(await count('--actor', 'system'), 0);
    assert.match(await cli.fails(2, 'events', '--since', 'soon'), /--since takes a duration before now/);
  });

  test('events -f --since prints those since then, oldest first, and goes on with new ones', async () => {
    const { cli, who } = await somebody();
    const [one, two] = [await api.instance(who), await api.instance(who)];
    await raiseNotificationsOfEvents(api.db);
    const following = cli.start(['events', '-f', '--since', '1h', '--actor', who.email], null);
    await until('the past is printed', () => following.out().includes(two.name));
    const three = await api.instance(who);
    await raiseNotificationsOfEvents(api.db);
    await until('the new one is printed', () => following.out().includes(three.name));
    following.child.kill('SIGINT');
    const { code, out } = await following.ended;
    assert.equal(code, 130);
    const order = [one, two, three].map(({ name }) => out.indexOf(`created ${name}\n`));
    assert.deepEqual(
      order,
      order.toSorted((a, b) => a - b),
    );
    assert.ok(!order.includes(-1), out);
  });

  test('audit lists who did what to what, by names, and takes a time, an action and an actor', async () => {
    const { cli, who } = await somebody();
    await api.as(who).post('/v1/api-keys', { name: 'ci', scope: 'vm:read' });
    await api.instance(who, { name: 'web' });
    const [heading, web, ci] = (await cli.done('audit')).split('\n');
    assert.match(heading ?? '', /^SEQ +WHEN +ACTOR +ACTION +TARGET +DETAILS +FROM$/);
    assert.match(
      ci ?? '',
      /^(1|-) +20\S+ \S+ \((just now|\d+ s ago)\) +usr_\S+@example\.org +api_key\.create +ci \(ak_\w+\) +scope: vm:read /,
    );
    assert.match(web ?? '', /instance\.create +web \(inst_\w+\) .*127\.0\.0\.1$/);
    const count = async (...words: string[]) => (await cli.json<unknown[]>('audit', ...words)).length;
    assert.equal(await count('--since', '1h'), 2);
    assert.equal(await count('--type', 'api_key.create', '--actor', who.email), 1);
    assert.equal(await count('--until', '1h'), 0);
    assert.match(await cli.done('audit', '--limit', '1', '--json'), /"target": "inst_/);
  });
});
