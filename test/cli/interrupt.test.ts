/** Ctrl-C ends every command, even when the server accepts connections and never answers. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';
import { after, test } from 'node:test';
import { Cli } from '../support/cli.ts';

const silent = createServer((socket) => socket.on('error', () => undefined)).listen(0, '127.0.0.1');
await once(silent, 'listening');
const url = `http://127.0.0.1:${(silent.address() as AddressInfo).port}`;
after(() => silent.close());

test('a command that nobody answers ends with 130', async () => {
  const cli = new Cli({ BERTH_URL: url, BERTH_API_KEY: 'berth_live_any' });
  const connected = once(silent, 'connection');
  const listing = cli.start(['ls']);
  const [socket] = await connected;
  listing.child.kill('SIGINT');
  assert.equal((await listing.ended).code, 130);
  socket.destroy();
});
