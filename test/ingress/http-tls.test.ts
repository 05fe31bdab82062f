/** The certificate of HTTP ports: new files are taken without a restart. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtemp, rename, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { connect, type TLSSocket } from 'node:tls';
import { followCertificate, readCertificate } from '../../src/ingress/http/http-ingress.ts';
import { type Certificate, HttpListener } from '../../src/ingress/http/listener.ts';
import { HTTP_LIMITS } from '../../src/ingress/limits.ts';
import { createLog } from '../../src/shared/log.ts';
import { certificate } from '../support/certificate.ts';
import { HOST } from '../support/sockets.ts';
import { until } from '../support/waiting.ts';

async function connected(t: TestContext, port: number): Promise<TLSSocket> {
  const socket = connect({ host: HOST, port, rejectUnauthorized: false, ALPNProtocols: ['h2', 'http/1.1'] });
  t.after(() => socket.destroy());
  await once(socket, 'secureConnect');
  return socket;
}

const nameOf = (socket: TLSSocket) => socket.getPeerCertificate().subject.CN;

test('new connections get the new certificate, open ones stay, and a pair that does not fit changes nothing', async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'berth-tls-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  const files = { cert_path: join(folder, 'cert'), key_path: join(folder, 'key') };
  /** As certbot does. */
  const replace = async (path: string, bytes: Buffer) => {
    await writeFile(`${path}.new`, bytes);
    await rename(`${path}.new`, path);
  };
  const write = async ({ cert, key }: Certificate) => {
    await replace(files.cert_path, cert);
    await replace(files.key_path, key);
  };
  const [first, second] = [await certificate(t, 'first.example'), await certificate(t, 'second.example')];
  await write(first);
  const unused = () => assert.fail('no request comes');
  const handlers = { request: unused, upgrade: unused, connect: unused };
  const listener = new HttpListener(await readCertificate(files), handlers, HTTP_LIMITS);
  await listener.listen(HOST, 0);
  t.after(() => listener.destroy());
  const over = new AbortController();
  let refused = 0;
  const log = createLog('test', 'silent');
  log.error = () => {
    refused += 1;
  };
  const changed = listener.setCertificate.bind(listener);
  const following = followCertificate(files, { changed, log, signal: over.signal });
  t.after(() => {
    over.abort();
    return following;
  });

  const open = await connected(t, listener.port);
  assert.deepEqual([nameOf(open), open.alpnProtocol], ['first.example', 'h2']);
  await replace(files.key_path, second.key);
  await until('the pair was refused', () => refused === 1);
  assert.equal(nameOf(await connected(t, listener.port)), 'first.example');
  await write(second);
  await until(
    'the new one is used',
    async () => nameOf(await connected(t, listener.port)) === 'second.example',
  );
  assert.ok(!open.destroyed);
});
