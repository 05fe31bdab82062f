/** The commands that the console's forms show: a shell and `berth`, and a shell and curl, do what the form would. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { dirname } from 'node:path';
import { describe, test } from 'node:test';
import { promisify } from 'node:util';
import type { CreateInstanceRequest, Instance } from '../../client/src/berth.ts';
import {
  type Creation,
  changeCommands,
  createCommands,
  forkCommands,
  NEW_DEFAULTS,
  quoted,
} from '../../console/src/instance/as-commands.ts';
import type { InstanceId } from '../../src/shared/ids.ts';
import { apiForFile, newName } from '../support/api.ts';
import { BERTH } from '../support/cli.ts';
import { makeGenerations } from '../support/generations.ts';
import { makeKey, makeSshKey } from '../support/people.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile();
const owner = await api.person();
const { key } = await makeKey(api.db, owner, '*');
const ssh_key = await makeSshKey(api.db, owner.user_id);
const as = api.as(owner);

async function shell(script: string): Promise<void> {
  const env = {
    PATH: `${dirname(BERTH)}:${process.env['PATH']}`,
    HOME: '/nonexistent',
    BERTH_URL: api.origin,
    BERTH_API_KEY: key,
  };
  await promisify(execFile)('sh', ['-euc', script], { env });
}

async function instanceNamed(name: string): Promise<Instance> {
  const { body } = await as.get<{ data: Instance[] }>(`/v1/instances?name=${name}`);
  return body.data[0] ?? assert.fail(`${name} was not created`);
}

async function newInstance(fields: Record<string, unknown> = {}): Promise<Instance> {
  return instanceNamed((await api.instance(owner, fields)).name);
}

async function scriptOf(id: string): Promise<string | null> {
  const row = await api.db
    .selectFrom('user_data')
    .select('script')
    .where('instance_id', '=', id as InstanceId)
    .executeTakeFirst();
  return row?.script ?? null;
}

const HOSTILE = `it's "$HOME" \`id\` \\ $(touch /tmp/x) *\n-n %s\ttab`;
const WANTED: Readonly<Record<string, Omit<CreateInstanceRequest, 'name'>>> = {
  'nothing but a name': {},
  'every default': { ...NEW_DEFAULTS },
  'every field': {
    image: 'debian-12',
    cpus: 4,
    memory_mib: 1500,
    disk_gib: 20,
    labels: { team: 'web & db', 'a/b': `quote ' " $HOME`, empty: '' },
    idle_timeout_seconds: 600,
    wake_on_connect: true,
    auto_flush_seconds: 30,
    restart: 'on_failure',
    user_data: `#!/bin/sh\n${HOSTILE}\n`,
  },
  'no automatic flush, and a script without a line end': { auto_flush_seconds: null, user_data: HOSTILE },
};

for (const tool of ['cli', 'curl'] as const) {
  describe(`the command for ${tool}`, () => {
    for (const [what, fields] of Object.entries(WANTED)) {
      test(`creates what the form holds: ${what}`, async () => {
        const body = { ...fields, name: newName() };
        await shell(createCommands({ body, start: false, ssh_key_ids: null }, api.origin)[tool]);
        const made = await instanceNamed(body.name);
        const { user_data = null, ...wanted } = { ...NEW_DEFAULTS, ...body };
        for (const [field, value] of Object.entries(wanted))
          assert.deepEqual(made[field as keyof Instance], value, field);
        assert.equal(await scriptOf(made.id), user_data);
      });
    }

    test('sets the chosen keys, and starts the VM', async () => {
      const creation: Creation = { body: { name: newName() }, start: true, ssh_key_ids: [ssh_key.id] };
      const running = shell(createCommands(creation, api.origin)[tool]);
      const path = `/v1/instances?name=${creation.body.name}`;
      await until(
        'it is created',
        async () => (await as.get<{ data: Instance[] }>(path)).body.data.length > 0,
      );
      const { id } = await instanceNamed(creation.body.name);
      await api.agent.assigned(id as InstanceId);
      await api.agent.ready(id as InstanceId);
      await running;
      const made = await instanceNamed(creation.body.name);
      assert.equal(made.vm.boot, 1);
      const { body } = await as.get<{ mode: string; data: { id: string }[] }>(
        `/v1/instances/${made.id}/ssh-keys`,
      );
      assert.deepEqual([body.mode, body.data.map((each) => each.id)], ['explicit', [ssh_key.id]]);
    });

    test('forks a generation, and the newest', async () => {
      const parent = await newInstance();
      await makeGenerations(api.db, parent.id as InstanceId, 2);
      for (const generation of [1, undefined]) {
        const name = newName();
        await shell(
          forkCommands(parent, { name, generation, flush: null, secrets: false }, api.origin)[tool],
        );
        assert.equal((await instanceNamed(name)).disk.generation, generation ?? 2);
      }
    });

    test('changes what was changed in the form, and nothing else', async () => {
      const before = await newInstance({ labels: { a: '1' }, auto_flush_seconds: 30 });
      const wanted = {
        ...{ name: newName(), cpus: 3, memory_mib: before.memory_mib, auto_flush_seconds: null },
        ...{
          labels: { b: HOSTILE.replaceAll(/[\n\t]/g, ' ') },
          generations_keep: { last: 5, daily_days: 0 },
        },
      };
      const commands = changeCommands(before, wanted, api.origin) ?? assert.fail('nothing to change');
      assert.doesNotMatch(commands.curl, /memory_mib/);
      await shell(commands[tool]);
      const { body } = await as.get<Instance>(`/v1/instances/${before.id}`);
      for (const [field, value] of Object.entries(wanted))
        assert.deepEqual(body[field as keyof Instance], value, field);
    });
  });
}

test('a form that holds what the instance has needs no command', async () => {
  const instance = await newInstance();
  const { name, cpus, labels } = instance;
  assert.equal(changeCommands(instance, { name, cpus, labels }, api.origin), null);
});

test('a word is quoted only where a shell would read it otherwise', () => {
  assert.equal(quoted('a=1,b:2/c.d@e'), 'a=1,b:2/c.d@e');
  assert.equal(quoted(''), "''");
  assert.equal(quoted("it's"), `'it'\\''s'`);
});
