/** The serial console on the command line, on a terminal. The test is the other end of the line. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { apiForFile } from '../support/api.ts';
import { Cli } from '../support/cli.ts';
import { makeKey } from '../support/people.ts';
import { instanceIn } from '../support/states.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile();
const who = await api.person();
const { key } = await makeKey(api.db, who, '*');
const cli = new Cli({ BERTH_URL: api.origin, BERTH_API_KEY: key });
const { name } = await instanceIn(api, who, 'running');

async function opened() {
  const running = cli.onTerminal(['console', name]);
  const { id } = await api.agent.nextCall('console');
  const line = await api.agent.client.openConsole(id);
  line.on('error', () => undefined);
  return { running, line };
}

test('what is printed comes, what is typed goes, Ctrl-C too; Ctrl-] ends it', async () => {
  const { running, line } = await opened();
  let typed = '';
  line.setEncoding('utf8').on('data', (text: string) => {
    typed += text;
  });
  line.write('\u001b[1mroot# \u001b[0m');
  await until('the prompt is there', () => running.out().includes('\u001b[1mroot# \u001b[0m'));
  running.child.stdin?.write('ä\u0003\r');
  await until('all is typed', () => typed === 'ä\u0003\r');
  running.child.stdin?.write('\u001d');
  assert.equal((await running.ended).code, 0);
});

test('it ends when the VM does', async () => {
  const { running, line } = await opened();
  line.write('bye');
  await until('it is there', () => running.out().includes('bye'));
  line.destroy();
  assert.equal((await running.ended).code, 0);
});

test('without a terminal, or a VM, it says what else there is', async () => {
  assert.match(await cli.fails(2, 'console', name), /needs a terminal\n {2}next: berth exec/);
  const off = await api.instance(who);
  const { code, out } = await cli.onTerminal(['console', off.name]).ended;
  assert.deepEqual([code, out.includes(`next: berth start ${off.name}`)], [5, true], out);
});
