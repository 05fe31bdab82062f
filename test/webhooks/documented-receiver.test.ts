/** Runs the programs of docs/webhooks.md: the receiver, and the scripts for curl and openssl. */
import assert from 'node:assert/strict';
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { createHmac, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { promisify } from 'node:util';
import { until } from '../support/waiting.ts';

const run = promisify(execFile);
const DOCUMENT = join(import.meta.dirname, '..', '..', 'docs', 'webhooks.md');
const SECRET = `whsec_${randomBytes(24).toString('base64')}`;
/** The test vector of https://github.com/standard-webhooks/standard-webhooks */
const PUBLISHED = {
  secret: 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw',
  id: 'msg_p5jXN8AQM9LWM0D4loKWxJek',
  timestamp: '1614265330',
  body: '{"test": 2432232314}',
  signature: 'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=',
};

const folder = mkdtempSync(join(tmpdir(), 'berth-documented-'));
let receiver: ChildProcess;
let url: string;
let printed = '';

before(async () => {
  const text = readFileSync(DOCUMENT, 'utf8');
  for (const [, language, name = '', rest] of text.matchAll(
    /^```(ts|sh)\n(?:\/\/|#) ([a-z]+\.\w+)(.*?)^```$/gms,
  )) {
    writeFileSync(join(folder, name), `${language === 'ts' ? '//' : '#'} ${name}${rest}`);
  }
  receiver = spawn(process.execPath, ['receiver.ts'], {
    cwd: folder,
    env: { ...process.env, WEBHOOK_SECRET: SECRET, PORT: '0' },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  receiver.stdout?.setEncoding('utf8').on('data', (more: string) => {
    printed += more;
  });
  const port = await until('the receiver listens', () => /listening on (\d+)/.exec(printed)?.[1]);
  url = `http://127.0.0.1:${port}/`;
});
after(async () => {
  receiver.kill('SIGKILL');
  await once(receiver, 'exit');
  rmSync(folder, { recursive: true });
});

const seconds = () => String(Math.floor(Date.now() / 1000));
const sign = (id: string, timestamp: string, body: string, secret = SECRET) =>
  `v1,${createHmac('sha256', Buffer.from(secret.slice('whsec_'.length), 'base64'))
    .update(`${id}.${timestamp}.${body}`)
    .digest('base64')}`;

async function send(id: string, timestamp: string, signature: string, body: string): Promise<number> {
  const headers = { 'webhook-id': id, 'webhook-timestamp': timestamp, 'webhook-signature': signature };
  return (await fetch(url, { method: 'POST', headers, body })).status;
}

function shell(name: string, secret: string, args: readonly string[]) {
  return run('sh', [name, ...args], { cwd: folder, env: { ...process.env, WEBHOOK_SECRET: secret } });
}

const BODY =
  '{"type":"vm.started","timestamp":"2026-01-01T00:00:00.000Z","data":{"name":"grün","sequence":3}}';

test('the receiver accepts a signed request once, and either signature of a rotation', async () => {
  const now = seconds();
  assert.equal(await send('evt_1', now, sign('evt_1', now, BODY), BODY), 204);
  assert.equal(await send('evt_1', now, sign('evt_1', now, BODY), BODY), 204);
  const other = sign('evt_2', now, BODY, `whsec_${randomBytes(24).toString('base64')}`);
  assert.equal(await send('evt_2', now, `${other} ${sign('evt_2', now, BODY)}`, BODY), 204);
  await until('both are printed', () => /evt_2/.test(printed));
  assert.equal(printed.match(/^evt_1 vm.started 3$/gm)?.length, 1);
  assert.equal(printed.match(/^evt_2 vm.started 3$/gm)?.length, 1);
});

test('the receiver refuses requests that are changed, old, signed with another secret, or unsigned', async () => {
  const now = seconds();
  const old = String(Number(now) - 400);
  const good = sign('evt_3', now, BODY);
  assert.equal(await send('evt_3', now, good, `${BODY} `), 401);
  assert.equal(await send('evt_4', now, good, BODY), 401);
  assert.equal(await send('evt_3', String(Number(now) + 1), good, BODY), 401);
  assert.equal(await send('evt_3', old, sign('evt_3', old, BODY), BODY), 401);
  assert.equal(await send('evt_3', 'never', sign('evt_3', 'never', BODY), BODY), 401);
  for (const signature of [
    '',
    'v1,',
    'v1',
    good.replace('v1', 'v2'),
    good.slice(0, -4),
    `v1,${'A'.repeat(43)}=`,
  ]) {
    assert.equal(await send('evt_3', now, signature, BODY), 401, signature);
  }
  assert.equal(await send('evt_5', now, sign('evt_5', now, 'no JSON'), 'no JSON'), 500);
  assert.doesNotMatch(printed, /evt_[345]/);
});

test('the receiver accepts send.sh with its secret only', async () => {
  assert.equal((await shell('send.sh', SECRET, [url])).stdout, '204\n');
  await until('the ping is printed', () => /^evt_try\d+ webhook.ping/m.test(printed));
  const other = `whsec_${randomBytes(32).toString('base64')}`;
  await assert.rejects(shell('send.sh', other, [url]), ({ stdout }) => stdout === '401\n');
});

test('verify.sh accepts the published vector and refuses a forgery', async () => {
  const { secret, id, timestamp, body, signature } = PUBLISHED;
  writeFileSync(join(folder, 'body.json'), body);
  const verify = (...args: string[]) => shell('verify.sh', secret, ['body.json', ...args]);
  assert.equal((await verify(id, timestamp, signature)).stdout, 'genuine\n');
  assert.equal((await verify(id, timestamp, `v1,${'A'.repeat(43)}= ${signature}`)).stdout, 'genuine\n');
  await assert.rejects(verify(id, '1614265331', signature), /not genuine/);
  await assert.rejects(verify(id, timestamp, signature.slice(0, -2)), /not genuine/);
  writeFileSync(join(folder, 'body.json'), `${body}\n`);
  await assert.rejects(verify(id, timestamp, signature), /not genuine/);
});
