/** Ports and folders that another program holds, and invalid settings: each gets one line, and the rest works. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, type Server } from 'node:net';
import { after, before, describe, test } from 'node:test';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import { ownPort } from '../support/own-ports.ts';
import { thorough } from '../support/thorough.ts';

const THOROUGH = thorough(import.meta.filename);

async function listenOn(port: number): Promise<Server> {
  const server = createServer((socket) => socket.destroy());
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen({ host: '127.0.0.1', port, exclusive: true }, resolve);
  });
  return server;
}

describe('a start with a conflict or a wrong setting', { skip: CANNOT_BOOT_GUESTS, timeout: 590_000 }, () => {
  let berth: Installation;
  const servers: Server[] = [];

  before(async () => {
    berth = await Installation.start();
  });
  after(async () => {
    for (const server of servers) server.close();
    await berth?.dispose();
  });

  const refused = async (settings: Record<string, string>) => {
    const { child, ended, printed } = berth.launch(settings);
    // What it has printed may come after its end.
    await once(child, 'close');
    return { code: await ended, lines: printed().trimEnd().split('\n') };
  };

  test('a second start on the same data folder exits with 2 and one line', async () => {
    const { code, lines } = await refused({ BERTH_LISTEN: `127.0.0.1:${await ownPort()}` });
    assert.equal(code, 2);
    assert.deepEqual(lines, [
      `berth: another berth (pid ${berth.launcher_pid}) already runs on this data folder`,
    ]);
    await berth.ready();
  });

  test('BERTH_LISTEN in use exits with 2 and one line', async () => {
    const { code, lines } = await refused({ BERTH_DATA_DIR: `${berth.data_dir}/other` });
    assert.equal(code, 2);
    assert.deepEqual(lines, [
      `berth: BERTH_LISTEN: cannot listen on 127.0.0.1:${berth.port}: another program listens there; set another port by BERTH_LISTEN=127.0.0.1:PORT`,
    ]);
  });

  test('wrong settings exit with 2 and one line each', async () => {
    const { code, lines } = await refused({
      BERTH_ADMIN_PASSWORD: 'short',
      BERTH_SSH_PORTS: '9-1',
      BERTH_ACCEL: 'warp',
      BERTH_LISTN: 'x',
    });
    assert.equal(code, 2);
    assert.equal(lines.length, 4, lines.join('\n'));
    for (const name of ['BERTH_ADMIN_PASSWORD', 'BERTH_SSH_PORTS', 'BERTH_ACCEL', 'BERTH_LISTN']) {
      assert.equal(lines.filter((line) => line.startsWith(`berth: ${name}`)).length, 1, name);
    }
    assert(!lines.join().includes('short'), 'a password is never repeated');
  });

  test(
    'a new instance skips an SSH port that another program uses, and a freed port serves its instance again',
    THOROUGH,
    async () => {
      const first = await GuestInstance.create(berth, 'first');
      servers.push(await listenOn(berth.ssh_ports.first + 1));
      await first.start();
      const second = await GuestInstance.running(berth, 'second');
      assert.equal(second.target.port, berth.ssh_ports.first + 2);
      assert.equal(await second.sh('hostname'), 'second');

      const { port } = await first.learnHost();
      assert.equal(port, berth.ssh_ports.first);
      const from = berth.output.length;
      await berth.stop();
      const thief = await listenOn(port);
      servers.push(thief);
      await berth.start();
      const line = await berth.printed(/.*SSH port \d+ cannot be opened.*/, from);
      assert(line.includes(String(port)) && line.includes(first.id), line);
      assert.equal(await second.shAgain('hostname'), 'second', 'the others are reached');
      await new Promise((resolve) => thief.close(resolve));
      assert.equal(await first.shAgain('hostname'), 'first');
    },
  );
});
