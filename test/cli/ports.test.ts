/** HTTP ports and forwarded TCP ports on the command line. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect } from 'node:net';
import { describe, test } from 'node:test';
import { apiForFile } from '../support/api.ts';
import { Cli } from '../support/cli.ts';
import { makeKey, type Person } from '../support/people.ts';
import { instanceIn } from '../support/states.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile();

async function somebody(): Promise<{ cli: Cli; who: Person }> {
  const who = await api.person();
  const { key } = await makeKey(api.db, who, '*');
  return { cli: new Cli({ BERTH_URL: api.origin, BERTH_API_KEY: key }), who };
}

describe('HTTP ports', () => {
  test('add prints the URL; ls, show, set-access, open and rm take the number', async () => {
    const { cli, who } = await somebody();
    await api.instance(who, { name: 'web' });
    const list = () => cli.done('port', 'ls', 'web');
    assert.equal(await list(), 'web has no HTTP ports. Publish one: berth port add web PORT\n');
    const added = await cli.done('port', 'add', 'web', '8080');
    const [, url = ''] = /^(http:\S+)$/m.exec(added) ?? [];
    assert.match(
      added,
      /^Published port 8080 of web:\nhttp:\/\/web-\w{8}\.apps\.test:7480\nIt is private\. /,
    );
    assert.match(added, /berth port open web 8080/);
    assert.match(await list(), /^8080 +private +http:\/\/web-\S+ +0 +- +20\d\d-.* port_\w+$/m);
    assert.equal(await cli.done('port', 'ls', 'web', '-q'), `${url}\n`);
    assert.match(await cli.done('port', 'show', 'web', '8080'), new RegExp(`URL +${url}\n.*private`));
    const port = await cli.json<{ id: string }>('port', 'show', 'web', url);
    // Without a screen the URL is printed: the console opens a private port.
    assert.equal(
      await cli.done('port', 'open', 'web', '8080'),
      `${api.origin}/instances/web/ports/${port?.id}\n`,
    );
    assert.match(
      await cli.done('port', 'set-access', 'web', '8080', 'public'),
      new RegExp(`^${url} is now public\\. Anybody can open it\\.\n$`),
    );
    assert.equal(await cli.done('port', 'open', 'web', '8080'), `${url}\n`);
    assert.match(
      await cli.done('port', 'rm', 'web', '8080'),
      /^Deleted web-\S+\. The name is never assigned/,
    );
    assert.match(
      await cli.fails(3, 'port', 'rm', 'web', '8080'),
      /no HTTP port 8080\n {2}next: berth port ls web\n/,
    );
  });

  test('a number that stands for several is refused, with the URLs', async () => {
    const { cli, who } = await somebody();
    await api.instance(who, { name: 'web' });
    assert.match(await cli.done('port', 'add', 'web', '80', '--public'), /It is public/);
    const second = await cli.done('port', 'add', 'web', '80', '-q');
    const told = await cli.fails(2, 'port', 'rm', 'web', '80');
    assert.match(told, /“80” stands for several HTTP port/);
    assert.ok(told.includes(second.trim()));
    await cli.done('port', 'rm', 'web', second.trim());
    assert.equal((await cli.done('port', 'ls', 'web', '-q')).split('\n').length, 2);
  });

  test('a hostname of one’s own: the TXT record to make, and its state', async () => {
    const { cli, who } = await somebody();
    await api.instance(who, { name: 'web' });
    await cli.done('port', 'add', 'web', '80');
    const added = await cli.done('port', 'hostname', 'add', 'web', '80', 'app.example.com');
    assert.match(
      added,
      /^Added app\.example\.com\. .*\n_berth\.app\.example\.com {2}TXT {2}berth-port=\w+\n/,
    );
    assert.match(
      await cli.done('port', 'show', 'web', '80'),
      /hostname +app\.example\.com \(pending\)\n +TXT record +_berth/,
    );
    assert.match(
      await cli.fails(2, 'port', 'hostname', 'add', 'web', '80', '10.0.0.1'),
      /HOSTNAME must be a name, not an IP address/,
    );
    const removed = await cli.done('port', 'hostname', 'rm', 'web', '80', 'app.example.com');
    assert.equal(removed, 'Removed app.example.com from port 80 of web.\n');
  });

  test('bad words are named before the server is asked', async () => {
    const { cli } = await somebody();
    assert.match(await cli.fails(2, 'port', 'add', 'web', '0'), /a port is a number from 1 to 65535, not 0/);
    assert.match(
      await cli.fails(2, 'port', 'set-access', 'web', '80', 'open'),
      /the access is private or public, not open/,
    );
  });
});

describe('forward', () => {
  test('carries each connection to the guest, until Ctrl-C', async () => {
    const { cli, who } = await somebody();
    const { id, name } = await instanceIn(api, who, 'running');
    const forwarding = cli.start(['forward', name, '5432:0']);
    const at = /^Forwarding 127\.0\.0\.1:(\d+) to port 5432 of \S+\. Ctrl-C ends it\.$/m;
    await until('it listens', () => at.test(forwarding.out()));
    const local = Number(at.exec(forwarding.out())?.[1]);
    for (const text of ['one', 'two']) {
      const socket = connect({ port: local, host: '127.0.0.1', allowHalfOpen: true });
      const { id: call_id, call } = await api.agent.nextCall('port');
      assert.deepEqual([call.instance_id, call.port], [id, 5432]);
      const line = await api.agent.client.openConsole(call_id);
      line.allowHalfOpen = true;
      line.pipe(line);
      // The guest answers after the client has ended its side, as `printf x | nc` does.
      socket.end(text);
      const chunks: Buffer[] = [];
      socket.on('data', (chunk: Buffer) => chunks.push(chunk));
      await once(socket, 'end');
      assert.equal(Buffer.concat(chunks).toString(), text);
    }
    forwarding.child.kill('SIGINT');
    assert.equal((await forwarding.ended).code, 130);
  });

  test('says why a connection is refused, and continues', async () => {
    const { cli, who } = await somebody();
    const { name } = await instanceIn(api, who, 'running');
    const forwarding = cli.start(['forward', name, '9:0', '-q']);
    await until('it listens', () => /^127\.0\.0\.1:\d+\n/.test(forwarding.out()));
    const socket = connect(Number(forwarding.out().trim().split(':')[1]), '127.0.0.1');
    const closed = once(socket, 'close');
    const call = await api.agent.nextCall('port');
    const error = { code: 'not_listening', message: 'Nothing listens at port 9 in the VM.' } as const;
    await api.agent.client.answerCall({ id: call.id, answer: { error } });
    await closed;
    await until('it says so', () => /Nothing listens at port 9 in the VM/.test(forwarding.err()));
    assert.equal(forwarding.child.exitCode, null);
  });

  test('a VM that does not run and a local port that is taken are named, with what to type', async () => {
    const { cli, who } = await somebody();
    const { name } = await api.instance(who);
    const told = await cli.fails(5, 'forward', name, '80');
    assert.match(told, new RegExp(`${name} is not running\n {2}next: berth start ${name}\n`));
    const running = await instanceIn(api, who, 'running');
    const taken = new URL(api.origin).port;
    assert.match(
      await cli.fails(1, 'forward', running.name, `80:${taken}`),
      /cannot be opened here: EADDRINUSE\n {2}next: give another local port/,
    );
    assert.match(await cli.fails(2, 'forward', name, '80:81:82'), /a port is PORT or PORT:LOCAL/);
  });
});
