/** A host's credential opens no call of ingresses, other control planes or the operator, however its path is spelt. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { Agent, request } from 'undici';
import { AGENT_PROTOCOL, PROTOCOL_HEADER } from '../../src/protocol/protocol.ts';
import { ROUTES } from '../../src/protocol/routes.ts';
import { apiForFile } from '../support/api.ts';
import { listenToRemoteHosts } from '../support/remote-hosts.ts';

const api = await apiForFile();
const far = await listenToRemoteHosts(api);
const tls = new Agent({ connect: { ca: far.cert, checkServerIdentity: () => undefined } });
after(() => tls.destroy());
const { token } = await far.join('hostile', { cpus: '4', memory: '4096' });

const others = Object.values(ROUTES).flatMap(({ path, caller }) => (caller === 'host' ? [] : [path]));

/** Other ways to write a path that a server may take for the same: each letter encoded, capitals, slashes, dots, a query. */
function spellings(path: string): string[] {
  const encoded = Array.from(path.matchAll(/[a-z]/g), ({ index, 0: letter }) => {
    const code = `%${letter.charCodeAt(0).toString(16)}`;
    return path.slice(0, index) + code + path.slice(index + 1);
  });
  const slashes = [`/${path}`, `${path}/`, path.replace('v1/', 'v1//'), path.replace('v1/', 'v1/./')];
  return [path, ...encoded, ...slashes, path.toUpperCase(), `${path}?a=b`, `${path};a`];
}

/** With a body that passes no check: who may not call learns nothing of it. */
async function statusOf(path: string): Promise<number> {
  const { statusCode, body } = await request(`${far.origin}${path}`, {
    method: 'POST',
    dispatcher: tls,
    headers: {
      ...{ authorization: `Bearer ${token}`, 'content-type': 'application/json' },
      [PROTOCOL_HEADER]: String(AGENT_PROTOCOL),
    },
    body: '[]',
  });
  await body.dump();
  return statusCode;
}

test('its own calls are served', async () => {
  assert.equal(await statusOf(ROUTES.poll.path), 400);
});

for (const path of others) {
  test(`${path} is refused`, async () => {
    for (const spelt of spellings(path)) {
      const status = await statusOf(spelt);
      assert([401, 404].includes(status), `${spelt}: ${status}`);
    }
  });
}
