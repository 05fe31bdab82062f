import assert from 'node:assert/strict';
import {
  existsSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { createLog } from '../shared/log.ts';
import { boundLogFile, logDestination } from './log-file.ts';

const folder = mkdtempSync(join(tmpdir(), 'berth-log-'));
after(() => rmSync(folder, { recursive: true, force: true }));

test('on a terminal the log is a private file, and errors are printed in words', () => {
  const path = join(folder, 'berth.log');
  const told: string[] = [];
  const log = createLog(
    'agent',
    'info',
    logDestination(path, true, (text) => void told.push(text)),
  );
  assert.ok(!existsSync(path), 'made when it is needed');
  log.info({ token: 'berth_sess_1' }, 'a guest is up');
  log.error({ err: new Error('no space left') }, 'the image cannot be kept');
  log.error({ why: 'SIGKILL' }, 'role ingress died; starting it again');
  assert.deepEqual(told, [
    'berth: agent: the image cannot be kept (no space left)\n',
    'berth: agent: role ingress died; starting it again (SIGKILL)\n',
  ]);
  const lines = readFileSync(path, 'utf8').trimEnd().split('\n');
  assert.deepEqual(
    lines.map((line) => (JSON.parse(line) as { level: string }).level),
    ['info', 'error', 'error'],
  );
  assert.doesNotMatch(lines[0] ?? '', /berth_sess/);
  assert.equal(statSync(path).mode & 0o777, 0o600);
});

test('when the file cannot be written the lines go to the terminal', () => {
  const told: string[] = [];
  const nowhere = logDestination(join(folder, 'nowhere', 'berth.log'), true, (text) => void told.push(text));
  createLog('agent', 'info', nowhere).info('a guest is up');
  assert.match(told.join(''), /^\{"level":"info",.*"msg":"a guest is up"\}\n$/);
});

test('without a terminal the log goes to stderr', () => {
  assert.equal(logDestination(join(folder, 'other.log'), false), undefined);
});

test('the log is rotated at its bound', async () => {
  const path = join(folder, 'long.log');
  writeFileSync(path, 'first\n');
  truncateSync(path, 33 * 1024 * 1024);
  await boundLogFile(path, AbortSignal.abort());
  assert.equal(statSync(path).size, 0);
  assert.equal(readFileSync(`${path}.1`).subarray(0, 6).toString(), 'first\n');
});
