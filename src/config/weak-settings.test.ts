import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseConfig } from './config.ts';
import { httpEndpoint, weakSettings } from './weak-settings.ts';

function weakIn(env: Record<string, string>): Record<string, string> {
  const result = parseConfig(env, '/srv');
  assert(result.ok, JSON.stringify(result));
  return Object.fromEntries(weakSettings(result.config).map(({ check, found }) => [check, found]));
}

const SOUND = {
  BERTH_PUBLIC_URL: 'https://berth.example.org',
  BERTH_SMTP_URL: 'smtp://user:pass-word@mail.example.org',
};

test('nothing weakens an installation with TLS and a mail server', () => {
  assert.deepEqual(weakIn(SOUND), {});
  const own_tls = { BERTH_LISTEN: '0.0.0.0:443', BERTH_TLS_CERT: 'c.pem', BERTH_TLS_KEY: 'k.pem' };
  assert.deepEqual(weakIn({ ...SOUND, ...own_tls }), {});
  assert.deepEqual(
    weakIn({ ...SOUND, BERTH_METRICS_LISTEN: '127.0.0.1:9100', BERTH_TRUSTED_PROXIES: '10.0.0.1' }),
    {},
  );
});

test('each weak setting is named, and no secret', () => {
  for (const [name, value, check] of [
    ['BERTH_SIGNUPS', 'open', 'sign-ups'],
    ['BERTH_RATE_LIMITS', 'off', 'rate limits'],
    ['BERTH_SMTP_URL', '', 'mail'],
    ['BERTH_WEBHOOK_ALLOW_CIDRS', '10.0.0.0/8', 'webhooks'],
    ['BERTH_METRICS_LISTEN', '0.0.0.0:9100', 'metrics'],
    ['BERTH_DISK_ENCRYPTION', 'off', 'disk encryption'],
    ['BERTH_TRUSTED_PROXIES', '0.0.0.0/0', 'trusted proxies'],
    ['BERTH_LISTEN', '0.0.0.0:7400', 'TLS'],
    ['BERTH_PUBLIC_URL', 'http://berth.example.org', 'TLS'],
  ] as const) {
    const weak = weakIn({ ...SOUND, [name]: value });
    assert.deepEqual(Object.keys(weak), [check], `${name}=${value}`);
    assert.doesNotMatch(JSON.stringify(weak), /pass-word/);
  }
  const unset = weakIn({ ...SOUND, BERTH_PUBLIC_URL: '' });
  assert.deepEqual(Object.keys(unset), ['TLS', 'public URL']);
  assert.match(unset['TLS'] ?? '', /nothing but this machine/);
  assert.match(
    unset['public URL'] ?? '',
    /^http:\/\/127\.0\.0\.1:7400: links of invitations .* only on this machine/,
  );
  assert.match(
    weakIn({ ...SOUND, BERTH_PUBLIC_URL: 'http://berth.example.org' })['TLS'] ?? '',
    /people use http:/,
  );
});

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
