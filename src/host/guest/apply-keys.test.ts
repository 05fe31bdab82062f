import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fingerprintOf } from '../../shared/ssh-fingerprint.ts';
import { fingerprintOfLine, keysAreAmong, linesWithEnvironment } from './apply-keys.ts';

const [A, B] = ['ssh-ed25519 AAAA', 'sk-ssh-ed25519@openssh.com BBBB'] as const;

test('a line has the options of sshd before its key, and keeps its fingerprint', () => {
  const [line, other] = linesWithEnvironment(
    [A, B],
    ['BERTH_SECRET_A=berth-secret-0', 'SSL_CERT_FILE=/run/x'],
  );
  assert.equal(line, `environment="BERTH_SECRET_A=berth-secret-0",environment="SSL_CERT_FILE=/run/x" ${A}`);
  assert.equal(fingerprintOfLine(line ?? ''), fingerprintOf(A));
  assert.equal(fingerprintOfLine(other ?? ''), fingerprintOf(B));
});

test('without an environment a line is the key', () => {
  assert.deepEqual(linesWithEnvironment([A], []), [A]);
});

test('lines with another environment allow the same keys', () => {
  const before = linesWithEnvironment([A], ['X=1']);
  assert.equal(keysAreAmong(before, [A, B]), true);
  assert.equal(keysAreAmong(linesWithEnvironment([A, B], ['X=1']), before), false);
});
