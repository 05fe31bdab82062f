import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { Failure } from './failures.ts';
import { entriesOf } from './files.ts';
import { fieldsForGuest, guestAddressOf } from './guest-ports.ts';
import { endOfExec, pidOf } from './processes.ts';
import { unwrap } from './request-body.ts';
import {
  AccessTokens,
  endIn,
  endOf,
  guestPath,
  instanceIdOf,
  labelsOf,
  metadataOf,
  onTimeoutOf,
  profileOf,
  readKey,
  sandboxIdOf,
  userOf,
} from './sandbox.ts';

const SANDBOX = '01h2xcejqtf2nbrexx3vqjhp41';
const isFailure = (code: string) => (error: unknown) => error instanceof Failure && error.code === code;

test("a sandbox's id is its instance's, and fits a host name", () => {
  assert.equal(sandboxIdOf(`inst_${SANDBOX}`), SANDBOX);
  assert.equal(instanceIdOf(SANDBOX), `inst_${SANDBOX}`);
  for (const id of ['', `inst_${SANDBOX}`, '../audit', `${SANDBOX}/x`])
    assert.throws(() => instanceIdOf(id), isFailure('not_found'));
  assert.deepEqual(guestAddressOf(`3000-${SANDBOX}.localhost:7420`), { port: 3000, sandbox_id: SANDBOX });
  for (const host of [undefined, 'localhost:7420', `${SANDBOX}.localhost`, `3000-${SANDBOX}`])
    assert.equal(guestAddressOf(host), null);
});

test("fields for a guest are the caller's, without credentials of Berth and E2B", () => {
  const token = `berth_live_${'a'.repeat(49)}`;
  const withheld = [
    ...['X-API-KEY', 'theirs', 'x-access-token', 'a', 'E2b-Traffic-Access-Token', 'b', 'Connection', 'close'],
    ...[
      'Authorization',
      `Bearer ${token}`,
      'X-Other',
      `a=${token}`,
      'Cookie',
      'berth-port=1; __Host-berth_x=2',
    ],
  ];
  assert.deepEqual(fieldsForGuest(withheld, 'close'), ['Connection', 'close']);
  const passed = [
    'Authorization',
    'Bearer eyJ',
    'X-Project',
    'berth_demo',
    'A',
    '1',
    'A',
    '2',
    'Cookie',
    'a=1; b=2',
  ];
  assert.deepEqual(fieldsForGuest(passed, 'upgrade'), [...passed, 'Connection', 'upgrade']);
  const cookies = ['Cookie', `a=1; berth_b=2; c=3; d=${token}`];
  assert.deepEqual(fieldsForGuest(cookies, 'close'), ['Cookie', 'a=1; c=3', 'Connection', 'close']);
});

test('labels keep metadata, the end and what happens then', () => {
  const ends_at = endIn(60, new Date(0));
  const labels = labelsOf('base', { env: 'prod' }, ends_at, 'pause');
  assert.deepEqual(metadataOf(labels), { env: 'prod' });
  assert.deepEqual([endOf(labels)?.getTime(), onTimeoutOf(labels)], [60_000, 'pause']);
  assert.equal(endIn(undefined, new Date(0)).getTime(), 300_000);
  assert.throws(
    () => labelsOf('base', { 'e2b-ends-at': 'never' }, ends_at, 'kill'),
    isFailure('invalid_argument'),
  );
  for (const bad of [-1, Number.NaN, 1e12, '5'])
    assert.throws(() => endIn(bad, new Date()), isFailure('invalid_argument'));
  assert.equal(endOf({ 'e2b-ends-at': labels['e2b-ends-at'] ?? '' }), null);
  assert.equal(endOf({ ...labels, 'e2b-ends-at': 'soon' }), null);
  assert.equal(endOf({ ...labels, 'e2b-template': 'tools' }), null, 'a template has no end');
});

test('an access token opens its own sandbox, with the key that sealed it', () => {
  const key = randomBytes(32);
  const token = new AccessTokens(key).seal(SANDBOX, 'berth_live_secret');
  assert.doesNotMatch(Buffer.from(token, 'base64url').toString('latin1'), /secret/);
  assert.equal(new AccessTokens(key).open(SANDBOX, token), 'berth_live_secret');
  const other = '0'.repeat(26);
  assert.throws(() => new AccessTokens(key).open(other, token), isFailure('unauthenticated'));
  assert.throws(() => new AccessTokens(randomBytes(32)).open(SANDBOX, token), isFailure('unauthenticated'));
  const changed = `${token.slice(0, -2)}${token.endsWith('AA') ? 'BB' : 'AA'}`;
  for (const bad of ['', 'x', changed, token.slice(0, 30)])
    assert.throws(() => new AccessTokens(key).open(SANDBOX, bad), isFailure('unauthenticated'));
});

test('the key of access tokens is made once, for its owner alone', (context) => {
  const folder = mkdtempSync(join(tmpdir(), 'berth-e2b-'));
  context.after(() => rmSync(folder, { recursive: true, force: true }));
  const path = join(folder, 'key');
  const key = readKey(path);
  assert.equal(statSync(path).mode & 0o777, 0o600);
  assert.deepEqual(readKey(path), key);
  assert.notDeepEqual(readKey(undefined), readKey(undefined));
  writeFileSync(path, 'short');
  assert.throws(() => new AccessTokens(readKey(path)), /5 bytes instead of 32/);
});

test("paths begin at the user's home", () => {
  assert.equal(guestPath('user', 'a/../b'), '/home/user/b');
  assert.equal(guestPath('user', '~/b'), '/home/user/b');
  assert.equal(guestPath('root', ''), '/root');
  assert.equal(guestPath('user', '/etc/~'), '/etc/~');
  assert.equal(userOf(`Basic ${btoa('root:')}`), 'root');
  for (const header of [undefined, '', 'Bearer x', `Basic ${btoa(':')}`])
    assert.equal(userOf(header), 'user');
});

test('variables are quoted for a shell, and their names are checked', () => {
  assert.equal(profileOf({ A: "it's $(x)" }), `[ -n "\${A+x}" ] || export A='it'\\''s $(x)'\n`);
  for (const name of ['', 'A B', 'A;reboot', '1A'])
    assert.throws(() => profileOf({ [name]: '' }), isFailure('invalid_argument'));
});

test('what find prints becomes entries, also names with line breaks', () => {
  const printed = [
    'd',
    '4096',
    'drwxr-xr-x',
    '755',
    'user',
    'user',
    '1.5',
    '',
    '/a\nb',
    'l',
    '1',
    'lrwxrwxrwx',
  ];
  const more = ['777', 'root', 'root', '0.0000000000', 'a', '/c', ''];
  const [folder, link] = entriesOf([...printed, ...more].join('\0'));
  assert.deepEqual([folder?.name, folder?.type, folder?.mode], ['a\nb', 'FILE_TYPE_DIRECTORY', 0o755]);
  assert.equal(folder?.modifiedTime, '1970-01-01T00:00:01.500Z');
  assert.deepEqual([link?.path, link?.symlinkTarget], ['/c', 'a']);
  assert.deepEqual(entriesOf(''), []);
});

test('the end of an exec is that of a process', () => {
  const exec = { state: 'exited', exit_code: 0, signal: null, timed_out: false } as Parameters<
    typeof endOfExec
  >[0];
  assert.deepEqual(endOfExec(exec), { exitCode: 0, exited: true, status: 'exit status 0' });
  const killed = { exitCode: -1, exited: false, status: 'signal: SIGTERM', error: 'signal: SIGTERM' };
  assert.deepEqual(endOfExec({ ...exec, exit_code: null, signal: 'SIGTERM' }), killed);
  assert.throws(() => endOfExec({ ...exec, state: 'lost' }), isFailure('unavailable'));
  assert.throws(() => endOfExec({ ...exec, timed_out: true }), isFailure('deadline_exceeded'));
  const pids = Array.from({ length: 100 }, (_, at) => pidOf(`exec_${at}`));
  assert.ok(pids.every((pid) => pid > 0 && pid < 2 ** 31) && new Set(pids).size === 100);
});

test("a stream's request is one uncompressed message", () => {
  assert.deepEqual(unwrap(Buffer.from('\0\0\0\0\x02{}')), {});
  for (const bad of ['', '{}', '\x01\0\0\0\x02{}', '\0\0\0\0\x03{}', '\0\0\0\0\x02{]'])
    assert.throws(() => unwrap(Buffer.from(bad)), isFailure('invalid_argument'));
});
