/** The address of HTTP ports. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { request as requestHttp, type ServerResponse } from 'node:http';
import { connect as connectHttp2 } from 'node:http2';
import { request as requestHttps } from 'node:https';
import { text } from 'node:stream/consumers';
import { test } from 'node:test';
import { HttpListener } from '../../src/ingress/http/listener.ts';
import { HTTP_LIMITS } from '../../src/ingress/limits.ts';
import { certificate } from '../support/certificate.ts';
import { dial, HOST } from '../support/sockets.ts';
import { until } from '../support/waiting.ts';

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

for (const version of ['1.1', '2'] as const)
  for (const is_secure of [false, true])
    test(`idle connections give way to new ones, one with a request does not: HTTP/${version}, ${is_secure ? 'TLS' : 'no TLS'}`, async (t) => {
      const answers: ServerResponse[] = [];
      const handlers = {
        ...NOTHING,
        request: (_request: unknown, response: ServerResponse) => void answers.push(response),
      };
      const limits = { ...HTTP_LIMITS, connections: 4 };
      const listener = new HttpListener(is_secure ? await certificate(t, 'web') : null, handlers, limits);
      t.after(() => listener.destroy());
      await listener.listen(HOST, 0);
      const { port } = listener;
      const asked = version === '2' ? askHttp2(port, is_secure) : askHttp1(port, is_secure);
      await until('the request has arrived', () => answers.length === 1);
      const idle = Array.from({ length: 12 }, () => dial(t, port, '127.0.0.2').resume());
      await until(
        'most were closed',
        () => idle.filter(({ readableEnded, closed }) => readableEnded || closed).length === 10,
      );
      answers[0]?.end('answered');
      assert.equal(await asked, 'answered');
    });

async function askHttp1(port: number, is_secure: boolean): Promise<string> {
  const options = { host: HOST, port, agent: false, rejectUnauthorized: false } as const;
  const asked = is_secure ? requestHttps(options) : requestHttp(options);
  asked.end();
  const [answer] = await once(asked, 'response');
  return text(answer);
}

async function askHttp2(port: number, is_secure: boolean): Promise<string> {
  const session = connectHttp2(`${is_secure ? 'https' : 'http'}://${HOST}:${port}`, {
    rejectUnauthorized: false,
  });
  const stream = session.request({ ':path': '/' });
  const said = await text(stream);
  session.close();
  return said;
}
