/** berth operator: the installation over the API, for the operating organisation only. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { apiForFile } from '../support/api.ts';
import { Cli } from '../support/cli.ts';

const api = await apiForFile();
const PASSWORD = 'correct horse battery';

test('shows findings, hosts, images and organisations to the operating organisation, and to nobody else', async () => {
  const who = await api.person({ password: PASSWORD });
  await api.db.updateTable('organisations').set({ operator: true }).where('id', '=', who.org_id).execute();
  const other = await api.person({ password: PASSWORD });
  const cli = new Cli();
  const by = (...args: string[]) => cli.run([...args, '--password-stdin'], PASSWORD);
  const login = ['login', '--url', api.origin, '--email'];
  await by(...login, who.email);
  const shown = await by('operator');
  assert.deepEqual([shown.code, shown.err], [0, '']);
  assert.match(shown.out, /^version +\d+\.\d+\.\d+\nobject storage .*\nstored +\S+ \w+ of disks/);
  assert.match(shown.out, /^mail +no mail server is set/m);
  const orgs = await by('operator', 'orgs');
  assert.match(orgs.out, /^NAME +MEMBERS +INSTANCES +CPUS +MEMORY +DISK +CREATED +ID\n/);
  assert.match(orgs.out, new RegExp(`^Org +1 +0 of unlimited .*${who.org_id}$`, 'm'));
  assert.match(
    (await by('operator', 'hosts', '--format', 'csv')).out,
    /^name,state,vms,memory,cpus,accelerator,/,
  );
  assert.match(
    (await by('operator', 'images', '--format', 'csv')).out,
    /^image,version,current,size,stored,disks/,
  );
  await by(...login, other.email, '--profile', 'other');
  const refused = await by('operator', '--profile', 'other');
  assert.equal(refused.code, 4);
});
