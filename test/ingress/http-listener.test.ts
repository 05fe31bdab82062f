/** The address of HTTP ports. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { HTTP_LIMITS } from '../../src/ingress/http/limits.ts';
import { HttpListener } from '../../src/ingress/http/listener.ts';
import { HOST } from '../support/sockets.ts';

const NOTHING = { request: () => undefined, upgrade: () => undefined, connect: () => undefined };

test('two installations cannot share an address, and another gets it once the first has ended', async (t) => {
  const [first, second] = [
    new HttpListener(null, NOTHING, HTTP_LIMITS),
    new HttpListener(null, NOTHING, HTTP_LIMITS),
  ];
  t.after(() => [first, second].map((each) => each.destroy()));
  await first.listen(HOST, 0);
  await assert.rejects(second.listen(HOST, first.port), { code: 'EADDRINUSE' });
  const { port } = first;
  first.destroy();
  const third = new HttpListener(null, NOTHING, HTTP_LIMITS);
  t.after(() => third.destroy());
  await third.listen(HOST, port);
  assert.equal(third.port, port);
});
