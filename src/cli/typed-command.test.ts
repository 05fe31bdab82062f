import assert from 'node:assert/strict';
import { test } from 'node:test';
import { typedAgain } from './typed-command.ts';

test('a command is repeated with an option as a shell reads it, before the words of another program', () => {
  const set = typedAgain(['set', 'web', '--label', "a=it's"]);
  assert.equal(set('--yes'), `berth set web --label 'a=it'\\''s' --yes`);
  assert.equal(
    typedAgain(['exec'], ['web', 'ls', '-l'])('--timeout 5m'),
    'berth exec --timeout 5m web ls -l',
  );
});

test('a wrong value of that option is replaced', () => {
  const again = typedAgain(['mfa', 'ls', '--totp', '123456', '--password-stdin']);
  assert.equal(again('--totp CODE'), 'berth mfa ls --password-stdin --totp CODE');
  assert.equal(typedAgain(['mfa', 'ls', '--totp=1'])('--totp CODE'), 'berth mfa ls --totp CODE');
});
