import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { createLog } from './log.ts';

function logged(fields: object): Record<string, unknown> {
  const lines: string[] = [];
  createLog('test', 'info', { write: (line) => lines.push(line) }).info(fields, 'said');
  return JSON.parse(lines.join(''));
}

describe('what must never reach a log', () => {
  it('is redacted at the top level, in logged objects, and in their members', () => {
    const request = { id: 1, token: 't', headers: { host: 'h', authorization: 'a', cookie: undefined } };
    const { password, request: shown } = logged({ password: 'p', request });
    assert.equal(password, '[redacted]');
    assert.deepEqual(shown, {
      id: 1,
      token: '[redacted]',
      headers: { host: 'h', authorization: '[redacted]' },
    });
    assert.equal(request.token, 't', 'the logged object is unchanged');
  });

  it('is redacted in lists, and in what an error holds', () => {
    const failed = Object.assign(new Error('no'), { secret: 's', config: { url: 'u', key: 'k' } });
    const { list, err } = logged({ list: [{ secret: 's' }, 2], err: failed });
    assert.deepEqual(list, [{ secret: '[redacted]' }, 2]);
    const { message, secret, config } = err as Record<string, unknown>;
    assert.deepEqual(
      { message, secret, config },
      {
        message: 'no',
        secret: '[redacted]',
        config: { url: 'u', key: '[redacted]' },
      },
    );
  });
});

it('times, bytes and null are written without change', () => {
  const { at, none, bytes } = logged({ at: new Date(0), none: null, bytes: Buffer.from('a') });
  assert.deepEqual(
    { at, none, bytes },
    { at: '1970-01-01T00:00:00.000Z', none: null, bytes: { type: 'Buffer', data: [97] } },
  );
});
