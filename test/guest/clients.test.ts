/** The clients in a whole installation with real guests: one table of calls, cut connections, and the documented example. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { FailingProxy } from '../support/failing-proxy.ts';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, type Installation } from '../support/installation.ts';
import { clientsWith, pythonClient } from '../support/python-client.ts';
import { type Call, judge } from '../support/run-calls.ts';
import { borrowInstallation, returnInstallation } from '../support/shared-installation.ts';
import { until } from '../support/waiting.ts';

const PROJECT = join(import.meta.dirname, '..', '..');
const tableOf = (name: string) =>
  JSON.parse(readFileSync(join(PROJECT, 'test', 'client', name), 'utf8')) as readonly Call[];
const calls = tableOf('guest-calls.json');
const file_calls = tableOf('file-calls.json');
/** Numbers, a line each, with pauses: long enough for a cut in its middle. */
const COUNT =
  'i=0; while [ $i -lt 600 ]; do i=$((i+1)); echo $i; [ $((i%50)) != 0 ] || sleep 0.3; done; exit 5';
const NUMBERS = Array.from({ length: 600 }, (_, index) => `${index + 1}\n`).join('');

const python = await pythonClient();

describe('clients and guests', { skip: CANNOT_BOOT_GUESTS, timeout: 590_000 }, () => {
  let berth: Installation;
  let key: string;
  let guest: GuestInstance;

  before(async () => {
    berth = await borrowInstallation();
    const body = { name: 'clients', scope: '*', expires_in_seconds: 3_600 };
    ({ key } = await berth.client.expect<{ key: string }>(201, 'POST', '/v1/api-keys', body));
  });
  after(returnInstallation);

  for (const [index, { name, run }] of clientsWith(python).entries()) {
    test(`${name}: the table of calls`, async () => {
      const outcomes = await run(calls, { url: berth.origin, key }, { name: `client-${index}` });
      for (const [at, call] of calls.entries()) judge(call, outcomes[at]);
    });
  }

  test('files: the table of calls, and files of any size and name', async () => {
    guest = await GuestInstance.running(berth, 'web');
    for (const { name, run } of clientsWith(python)) {
      const outcomes = await run(file_calls, { url: berth.origin, key }, { id: guest.id });
      for (const [at, call] of file_calls.entries())
        judge({ ...call, does: `${name} ${call.does}` }, outcomes[at]);
    }
    const env = { BERTH_URL: berth.origin, BERTH_API_KEY: key };
    const program = join(PROJECT, 'test', 'support', 'copy_files.py');
    assert.equal(await python.run([program, guest.id], env), 'same\n');
  });

  test('output that is cut off on its way is read on from its byte, by each client', async () => {
    const proxy = await FailingProxy.before(berth.origin);
    const call: Call = { does: 'counts', on: '$vm', verb: 'exec', arguments: [COUNT] };
    const handle: Call = { does: '', verb: 'vm', arguments: ['$id'], keep: { vm: '.' } };
    for (const { name, run } of clientsWith(python)) {
      proxy.reset();
      const running = run([handle, call], { url: proxy.url, key }, { id: guest.id });
      const follows = () => proxy.seen.filter(({ url }) => url.includes('follow=true'));
      await until(`${name} reads`, () => follows().some(({ answered_bytes }) => answered_bytes > 1_000));
      proxy.cut();
      const [, outcome] = await running;
      assert.deepEqual(outcome?.failed, undefined, name);
      assert.partialDeepStrictEqual(outcome?.gave, { stdout: NUMBERS, exit_code: 5 }, name);
      assert.ok(follows().length > 1, name);
      assert.match(follows().at(-1)?.url ?? '', /offset=[1-9]/, name);
    }
  });

  test('a command whose input cannot be sent whole is killed, and the call fails', async () => {
    const proxy = await FailingProxy.before(berth.origin);
    const handle: Call = { does: '', verb: 'vm', arguments: ['$id'], keep: { vm: '.' } };
    const call: Call = { does: '', on: '$vm', verb: 'exec', arguments: ['cat'], options: { input: 'in' } };
    for (const { name, run } of clientsWith(python)) {
      proxy.reset();
      proxy.refused = /\/stdin/;
      const [, outcome] = await run([handle, call], { url: proxy.url, key }, { id: guest.id });
      assert.equal(outcome?.failed?.['error'], 'BerthConnectionError', name);
      const ended = await until(`${name} has killed it`, async () => {
        const { data } = await berth.client.expect<{ data: { state: string }[] }>(
          ...([200, 'GET', `${guest.path}/execs?limit=1`] as const),
        );
        return data[0]?.state === 'exited' && data[0];
      });
      assert.partialDeepStrictEqual(ended, { command: ['sh', '-c', 'cat'], signal: 'SIGKILL' }, name);
    }
  });

  test('the example of docs/client.md runs, and the end of its block stops the VM', async () => {
    const document = readFileSync(join(PROJECT, 'docs', 'client.md'), 'utf8');
    const [, example] = /```python\n# example\.py\n(.*?)```/s.exec(document) ?? [];
    assert.ok(example);
    const out = await python.run(['-c', example], { BERTH_URL: berth.origin, BERTH_API_KEY: key });
    assert.match(out, /^Linux\n1\n2\n3\ngeneration \d+ is durable\nstopped\n$/);
  });
});
