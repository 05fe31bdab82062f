import assert from 'node:assert/strict';
import { test } from 'node:test';
import { BerthError, type ErrorDetail } from '../../client/src/berth.ts';
import type { Command } from './command.ts';
import { explain, typedAgain } from './explain.ts';

const CREATE: Command = {
  name: 'instance create',
  args: ['NAME'],
  summary: 'create an instance',
  example: 'berth create web',
  options: {
    cpus: { type: 'string', help: '' },
    memory: { type: 'string', help: '', field: 'memory_mib' },
    'idle-timeout': { type: 'string', help: '', field: 'idle_timeout_seconds' },
    label: { type: 'string', help: '', field: 'labels' },
  },
  run: async () => undefined,
};

function explained(message: string, details?: readonly ErrorDetail[]): string {
  const parts = { status: 400, code: 'INVALID_REQUEST', message, request_id: null } as const;
  return explain(new BerthError({ ...parts, ...(details && { details }) }), CREATE, { args: ['web'] });
}

test('an error names options and arguments, and their units, not fields of the API', () => {
  const details = [
    { field: 'memory_mib', issue: 'must be >= 128' },
    { field: 'idle_timeout_seconds', issue: 'must be <= 2592000' },
    { field: 'cpus', issue: 'must be integer' },
    { field: 'labels.team', issue: 'must be string' },
    { field: 'name', issue: 'must not be empty' },
    { field: 'elsewhere', issue: 'is required' },
  ];
  assert.deepEqual(explained('body: memory_mib must be >= 128', details).split('\n'), [
    'berth: --memory must be at least 128 MiB',
    '  --idle-timeout must be at most 30d',
    '  --cpus must be integer',
    '  --label must be string',
    '  NAME must not be empty',
    '  elsewhere is required',
  ]);
});

test('of a used-up quota the remedy is that of its message', () => {
  const parts = { status: 429, code: 'QUOTA_EXCEEDED', request_id: null } as const;
  const LS: Command = { ...CREATE, name: 'exec', options: {} };
  const execs = 'At most 32 execs run at once in a VM. Wait for one to end, or end one.';
  const details = [{ field: 'execs', issue: 'quota 32, used 32, wanted 1' }];
  const told = explain(new BerthError({ ...parts, message: execs, details }), LS, { args: ['web'] });
  assert.match(told, /^berth: At most 32 execs .* or end one\.\n.*\n {2}next: berth exec ls web$/);
  const secrets = 'An instance has at most 50 secrets. Delete one first.';
  const other = explain(new BerthError({ ...parts, message: secrets }), LS, { args: ['web'] });
  assert.equal(other, `berth: ${secrets}`);
});

test('a rule of the server names the option too', () => {
  const details = [{ field: 'memory_mib', issue: 'this host has 512 MiB' }];
  assert.equal(
    explained('memory_mib: this host has 512 MiB', details),
    'berth: --memory: this host has 512 MiB',
  );
});

test('a sentence that names fields names options, and leaves ordinary words', () => {
  const said = 'The name is taken; cpus and memory_mib change while it is stopped (POST …/vm/stop).';
  assert.equal(explained(said), 'berth: The name is taken; cpus and --memory change while it is stopped.');
});

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
