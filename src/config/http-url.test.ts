import assert from 'node:assert/strict';
import { test } from 'node:test';
import { httpEndpoint } from './http-url.ts';

test('URLs of ports follow the listener, or the origin in front of it', () => {
  const listener = { domain: 'Apps.example.org', listen_port: 7480, tls: false, url: null };
  const domain = 'apps.example.org';
  assert.deepEqual(httpEndpoint(listener), { domain, scheme: 'http', port: 7480 });
  assert.deepEqual(httpEndpoint({ ...listener, tls: true, listen_port: 443 }), {
    ...{ domain, scheme: 'https', port: null },
  });
  assert.deepEqual(httpEndpoint({ ...listener, listen_port: 80 }), { domain, scheme: 'http', port: null });
  const url = 'https://apps.example.org:8443';
  assert.deepEqual(httpEndpoint({ ...listener, url }), { domain, scheme: 'https', port: 8443 });
  assert.deepEqual(httpEndpoint({ ...listener, url: 'https://apps.example.org' }), {
    ...{ domain, scheme: 'https', port: null },
  });
});
