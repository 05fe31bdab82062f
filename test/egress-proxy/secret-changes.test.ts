/** Changes of secrets, and bounds of a VM that uses them, in network namespaces. */
import assert from 'node:assert/strict';
import { type ChildProcess, spawnSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { text } from 'node:stream/consumers';
import { after, before, describe, test } from 'node:test';
import { makeAuthority } from '../../src/control-plane/secrets/make-authority.ts';
import type { GuestSecret } from '../../src/protocol/egress-proxy-messages.ts';
import type { SecretsAuthority } from '../../src/protocol/host-types.ts';
import { fieldOf, SecretLab } from '../support/secret-lab.ts';
import { until } from '../support/waiting.ts';

const skip =
  process.getuid?.() !== 0 || spawnSync('nft', ['list', 'tables']).status !== 0
    ? 'network namespaces and firewall rules take root'
    : false;

const OPEN = { mode: 'open', allow: [] } as const;
const PLACEHOLDER = `berth-secret-${'0123456789abcdef'.repeat(2)}`;
const secret = (value: string, ...hosts: string[]): GuestSecret => ({
  placeholder: PLACEHOLDER,
  hosts,
  value,
});

/** One connection by HTTP/2 to argument 1, which sends a request for each line of stdin, and prints the status, or `closed`. */
const ASK = `
const http2 = require('node:http2');
const session = http2.connect('https://' + process.argv[1]);
session.on('error', () => undefined);
session.on('close', () => { console.log('closed'); process.exit(0); });
session.on('connect', () => console.log('open'));
require('node:readline').createInterface(process.stdin).on('line', (path) => {
  const stream = session.request({ ':path': path, 'x-key': '${PLACEHOLDER}' });
  stream.on('error', () => undefined);
  stream.on('response', (headers) => { console.log(headers[':status']); stream.resume(); });
});
`;
/** Opens argument 1 connections with a handshake each, without ever sending a request; prints how many stay open. */
const MANY = `
const tls = require('node:tls');
let [open, ended] = [0, 0];
const tell = () => { if (open + ended === Number(process.argv[1])) console.log(open); };
for (let at = 0; at < Number(process.argv[1]); at++) {
  const socket = tls.connect({ host: 'api.test', port: 443, servername: 'api.test', ALPNProtocols: ['http/1.1'] });
  socket.once('secureConnect', () => { open += 1; tell(); });
  socket.once('error', () => { ended += 1; tell(); });
}
process.stdin.resume();
`;

/** One connection by TLS that any server has; `answered` once it has answered a line of stdin. */
const KEEP = `
const tls = require('node:tls');
const name = process.argv[1];
const socket = tls.connect({ host: name, port: 443, servername: name, rejectUnauthorized: false, ALPNProtocols: ['http/1.1'] });
socket.on('secureConnect', () => console.log('open'));
socket.on('error', () => undefined);
socket.on('close', () => { console.log('closed'); process.exit(0); });
socket.on('data', () => console.log('answered'));
process.stdin.on('data', () => socket.write('GET / HTTP/1.1\\r\\nHost: ' + name + '\\r\\n\\r\\n'));
`;

/** Twenty connections to api.test one after the other; prints what the last said, or the first failure. */
const SHAKE = `
const tls = require('node:tls');
const shake = (left) => {
  const socket = tls.connect({ host: 'api.test', port: 443, servername: 'api.test', ALPNProtocols: ['http/1.1'] });
  socket.once('secureConnect', () => { socket.destroy(); left > 1 ? shake(left - 1) : console.log('trusted'); });
  socket.once('error', (error) => console.log(error.code));
};
shake(20);
`;

/** Two connections to api.test by TLS of version 1, the second with the session of the first; prints what happened to each. */
const AGAIN = `
const tls = require('node:tls');
const connect = (session, then) => {
  const options = { host: 'api.test', port: 443, servername: 'api.test', ALPNProtocols: [process.argv[2]] };
  const socket = tls.connect({ ...options, session, minVersion: process.argv[1], maxVersion: process.argv[1] });
  let kept;
  socket.on('session', (given) => { kept = given; });
  socket.once('error', (error) => console.log(error.code));
  socket.once('secureConnect', () => setTimeout(() => {
    console.log(socket.destroyed ? 'closed' : socket.isSessionReused() ? 'resumed' : 'new');
    socket.destroy();
    then?.(kept);
  }, 200));
};
connect(undefined, (session) => connect(session));
`;

describe('a change of secrets', { skip, timeout: 180_000 }, () => {
  let lab: SecretLab;
  const children: ChildProcess[] = [];
  before(async () => {
    lab = await SecretLab.open();
  });
  after(async () => {
    for (const child of children) child.kill('SIGKILL');
    await lab?.close();
  });

  function script(text: string, ...args: string[]) {
    const child = lab.start(process.execPath, ['-e', text, ...args]);
    children.push(child);
    assert.ok(child.stdout && child.stdin);
    child.stdin.on('error', () => undefined);
    const said: string[] = [];
    createInterface(child.stdout).on('line', (line) => said.push(line));
    return { child, said, send: (line: string) => child.stdin?.write(`${line}\n`) };
  }
  async function connection(name: string) {
    const started = script(ASK, name);
    await until('it is open', () => started.said.includes('open'));
    let asked = 0;
    const ask = async () => {
      const path = `/${asked++}-${Math.random()}`;
      started.send(path);
      return fieldOf(
        await until('the request arrives', () => lab.got.find(({ url }) => url === path)),
        'x-key',
      )[0];
    };
    return { ...started, ask };
  }

  test('takes effect for the next request of an open connection', async () => {
    await lab.allow(OPEN, [secret('sk-one', 'api.test')]);
    const { ask, said } = await connection('api.test');
    assert.equal(await ask(), 'sk-one');
    await lab.allow(OPEN, [secret('sk-two', 'api.test')]);
    assert.equal(await ask(), 'sk-two');
    await lab.allow(OPEN, [
      { ...secret('sk-two', 'api.test'), placeholder: `berth-secret-${'e'.repeat(32)}` },
    ]);
    assert.equal(await ask(), PLACEHOLDER);
    assert.ok(!said.includes('closed'));
  });

  test('cuts connections to hosts that are named no more, or for the first time, and no others', async () => {
    await lab.allow(OPEN, [secret('sk-one', 'api.test')]);
    const api = await connection('api.test');
    const passing = script(KEEP, 'other.test');
    await until('it passes', () => passing.said.includes('open'));
    await lab.allow(OPEN, [
      secret('sk-one', 'api.test'),
      { ...secret('x', 'expired.test'), placeholder: 'y' },
    ]);
    assert.equal(await api.ask(), 'sk-one');
    assert.ok(!passing.said.includes('closed'));
    await lab.allow(OPEN, [secret('sk-one', 'other.test')]);
    await until('both are cut', () => api.said.includes('closed') && passing.said.includes('closed'));
  });

  test('the first secret cuts no connection, and after the last one new connections pass by the proxy', async () => {
    await lab.allow(OPEN, []);
    const old = script(KEEP, 'api.test');
    await until('it is open', () => old.said.includes('open'));
    await lab.allow(OPEN, [secret('sk-one', 'other.test')]);
    const led = script(KEEP, 'api.test');
    await until('it is open', () => led.said.includes('open'));
    await lab.allow(OPEN, []);
    for (const each of [old, led]) {
      each.send('.');
      await until('it is still answered', () => each.said.includes('answered'));
    }
    lab.egress.stopProxy();
    const direct = script(KEEP, 'api.test');
    await until('it is open', () => direct.said.includes('open'));
    lab.egress.startProxy();
  });

  test('without the proxy nothing passes to port 443, and a new proxy serves with the present secrets', async () => {
    await lab.allow(OPEN, [secret('sk-one', 'api.test')]);
    lab.egress.stopProxy();
    assert.notEqual((await lab.curl('-H', `X-Key: ${PLACEHOLDER}`, 'https://api.test/')).status, 0);
    lab.egress.startProxy();
    await lab.allow(OPEN, [secret('sk-one', 'api.test')]);
    const { status } = await lab.curl('-H', `X-Key: ${PLACEHOLDER}`, 'https://api.test/again');
    assert.equal(status, 0);
    assert.deepEqual(fieldOf(lab.got.find(({ url }) => url === '/again') ?? assert.fail(), 'x-key'), [
      'sk-one',
    ]);
  });

  test('each VM sees certificates of its own authority, also for a name that another has a secret for', async () => {
    const [of_guest, of_neighbour] = [await makeAuthority('guest'), await makeAuthority('neighbour')];
    const secrets = [secret('sk-one', 'api.test')];
    await lab.egress.allowBoth(OPEN, [
      { secrets, authority: of_guest },
      { secrets, authority: of_neighbour },
    ]);
    const shake = async (who: 'guest' | 'neighbour', { certificate }: SecretsAuthority) => {
      const file = join(lab.folder, `${randomUUID()}.pem`);
      writeFileSync(file, certificate);
      const child = lab.start(process.execPath, ['-e', SHAKE], { NODE_EXTRA_CA_CERTS: file }, who);
      children.push(child);
      return child.stdout ? (await text(child.stdout)).trim() : assert.fail();
    };
    const said = await Promise.all([
      shake('guest', of_guest),
      shake('neighbour', of_neighbour),
      shake('guest', of_neighbour),
      shake('neighbour', of_guest),
    ]);
    const UNKNOWN = 'UNABLE_TO_VERIFY_LEAF_SIGNATURE';
    assert.deepEqual(said, ['trusted', 'trusted', UNKNOWN, UNKNOWN]);
  });

  for (const version of ['TLSv1.2', 'TLSv1.3'])
    for (const protocol of ['http/1.1', 'h2'])
      test(`a client that would resume a session of ${version} for ${protocol} gets a new one, and with it the present certificate`, async () => {
        await lab.allow(OPEN, [secret('sk-one', 'api.test')]);
        const { said } = script(AGAIN, version, protocol);
        await until('both are told', () => said.length === 2);
        assert.deepEqual(said, ['new', 'new']);
      });

  test('a VM has at most 256 connections to hosts of its secrets, and gets others again when they end', async () => {
    await lab.allow(OPEN, [secret('sk-one', 'api.test')]);
    const { said, child } = script(MANY, '300');
    await until('all are decided', () => said.length > 0);
    assert.equal(said[0], '256');
    child.kill('SIGKILL');
    await once(child, 'exit');
    await until('there is room again', async () => (await lab.curl('https://api.test/')).status === 0);
  });
});
