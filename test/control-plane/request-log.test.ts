/** The log line of every request. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { pino } from 'pino';
import { newToken, SESSION_PREFIX } from '../../src/control-plane/identity/tokens.ts';
import { apiForFile } from '../support/api.ts';
import { makeKey } from '../support/people.ts';

const lines: string[] = [];
const log = pino({ level: 'info' }, { write: (line: string) => void lines.push(line) });
const api = await apiForFile({ context: { log } });
const owner = await api.person();

/** The log line of the request that `call` sends; it is written just after the answer. */
async function lineOf(call: () => Promise<{ readonly headers: Record<string, unknown> }>) {
  const id = (await call()).headers['x-request-id'];
  for (;;) {
    const line = lines.find((text) => text.includes(String(id)));
    if (line !== undefined) return JSON.parse(line) as Record<string, unknown>;
    await new Promise((resolve) => setImmediate(resolve));
  }
}

test('a served request is logged with its time, route, principal and status', async () => {
  const line = await lineOf(() => api.as(owner).get('/v1/me'));
  assert.equal(line['method'], 'GET');
  assert.equal(line['route'], '/v1/me');
  assert.equal(line['status'], 200);
  assert.equal(line['principal'], owner.session_id);
  assert.equal(typeof line['time'], 'number');
  assert.equal(line['ip'], undefined);
});

test('a request refused for its credential or scope is logged with its address, too', async () => {
  const unknown = await lineOf(() => api.client.get('/v1/me'));
  assert.deepEqual([unknown['status'], unknown['principal'], unknown['ip']], [401, null, '127.0.0.1']);
  const { id, key } = await makeKey(api.db, owner, 'vm:read');
  const narrow = await lineOf(() => api.as(key).get('/v1/api-keys'));
  assert.deepEqual([narrow['status'], narrow['principal'], narrow['ip']], [403, id, '127.0.0.1']);
});

test('no credential, password or line break of a caller gets into the log', async () => {
  const token = newToken(SESSION_PREFIX);
  await lineOf(() => api.as(token).get('/v1/me'));
  await lineOf(() =>
    api.client.post('/v1/auth/login', { email: 'nobody@example.org', password: 'a password\nof two lines' }),
  );
  await lineOf(() => api.client.get('/v1/%0Aforged%20line'));
  const all = lines.join('');
  for (const secret of [token, owner.session, 'of two lines', 'forged line\n']) {
    assert.ok(!all.includes(secret), secret);
  }
  for (const line of lines) assert.equal(line.trimEnd().split('\n').length, 1);
});
