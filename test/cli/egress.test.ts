/** berth egress, and the egress options of create and set; against the API. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { InstanceId } from '../../src/shared/ids.ts';
import { apiForFile, newName } from '../support/api.ts';
import { Cli } from '../support/cli.ts';
import { makeKey } from '../support/people.ts';

const api = await apiForFile();
const who = await api.person();
const { key } = await makeKey(api.db, who, '*');
const cli = new Cli({ BERTH_URL: api.origin, BERTH_API_KEY: key });

const policy = async (name: string) => (await cli.json<{ egress: object }>('egress', name)).egress;

test('create and set take the policy, show and egress show it', async () => {
  const name = newName();
  await cli.done('create', name, '--egress', 'allow', '--allow', 'Example.com', '--allow', '203.0.113.0/24');
  assert.match(await cli.done('show', name), /^egress +allow: example\.com, 203\.0\.113\.0\/24$/m);
  assert.match(await cli.done('egress', name), /is allow: example\.com.*\nNothing was denied\./);
  await cli.done('set', name, '--egress', 'deny');
  assert.deepEqual(await policy(name), { mode: 'deny', allow: ['example.com', '203.0.113.0/24'] });
});

test('egress allows and removes a host, and says when the list does not apply', async () => {
  const name = newName();
  await cli.done('create', name, '--egress', 'allow');
  assert.equal(
    await cli.done('egress', name, 'allow', 'a.example.com', '*.example.org:8443'),
    `Allowed a.example.com, *.example.org:8443 for ${name}.\n`,
  );
  await cli.done('egress', name, 'remove', 'A.example.com');
  assert.deepEqual(await policy(name), { mode: 'allow', allow: ['*.example.org:8443'] });
  await cli.done('set', name, '--egress', 'open');
  assert.match(await cli.done('egress', name, 'allow', 'b.example.com'), /does not apply yet/);
  assert.match(
    await cli.fails(3, 'egress', name, 'remove', 'c.example.com'),
    new RegExp(`c\\.example\\.com is not on the list of ${name}\n {2}next: berth egress ${name}\n$`),
  );
  assert.match(
    await cli.fails(2, 'egress', name, 'forbid', 'x'),
    /after NAME comes allow or remove, not forbid/,
  );
  assert.match(await cli.fails(2, 'egress', name, 'deny'), new RegExp(`berth set ${name} --egress deny\n`));
});

test('a bad entry is named, and nothing changes', async () => {
  const name = newName();
  await cli.done('create', name);
  assert.match(
    await cli.fails(2, 'egress', name, 'allow', '10.0.0.1'),
    /^berth: HOST: "10\.0\.0\.1" is or contains a private or special address/,
  );
  assert.deepEqual(await policy(name), { mode: 'open', allow: [] });
});

test('denied destinations are listed with the command that allows one', async () => {
  const name = newName();
  const { id } = await cli.json<{ id: InstanceId }>('create', name, '--egress', 'deny');
  await api.as(who).post(`/v1/instances/${id}/vm`);
  await api.agent.assigned(id);
  const denied = { instance_id: id, at: new Date().toISOString(), count: 2 };
  await api.agent.client.reportDenied({
    denials: [{ ...denied, name: 'evil.example', address: '203.0.113.7', port: 443 }],
  });
  const shown = await cli.done('egress', name);
  assert.match(shown, /^evil\.example:443 +203\.0\.113\.7 +2 /m);
  assert.match(shown, new RegExp(`To allow one: berth egress ${name} allow evil\\.example`));
  assert.equal(await cli.done('egress', name, '-q'), 'evil.example:443\n');
});

test('only what the list lacks is offered to be allowed, by its port where that is needed', async () => {
  const name = newName();
  const { id } = await cli.json<{ id: InstanceId }>('create', name, '--egress', 'allow');
  await api.as(who).post(`/v1/instances/${id}/vm`);
  await api.agent.assigned(id);
  const ago = (minutes: number) => new Date(Date.now() - minutes * 60_000).toISOString();
  const denied = { instance_id: id, count: 1, address: '203.0.113.7' };
  await api.agent.client.reportDenied({
    denials: [
      { ...denied, name: 'first.example', port: 443, at: ago(1) },
      { ...denied, name: 'a.second.example', port: 8443, at: ago(2) },
    ],
  });
  const offered = async () => /berth egress .*/.exec(await cli.done('egress', name))?.[0];
  assert.equal(await offered(), `berth egress ${name} allow first.example`);
  await cli.done('egress', name, 'allow', 'first.example');
  assert.equal(await offered(), `berth egress ${name} allow a.second.example:8443`);
  await cli.done('egress', name, 'allow', '*.second.example:8443');
  assert.equal(await offered(), undefined);
  await cli.done('egress', name, 'remove', 'first.example');
  await cli.done('set', name, '--egress', 'open');
  assert.equal(await offered(), undefined, 'the mode open allows it');
});
