import assert from 'node:assert/strict';
import { test } from 'node:test';
import { relyingParty } from './webauthn.ts';

test('the relying party is the host name people use, localhost at a loopback address, none at another', () => {
  const cases: [public_url: string, expected: ReturnType<typeof relyingParty>][] = [
    ['https://berth.example.org', { id: 'berth.example.org', origin: 'https://berth.example.org' }],
    ['https://berth.example.org:8443', { id: 'berth.example.org', origin: 'https://berth.example.org:8443' }],
    ['http://127.0.0.1:7400', { id: 'localhost', origin: 'http://localhost:7400' }],
    ['http://[::1]:7400', { id: 'localhost', origin: 'http://localhost:7400' }],
    ['http://localhost', { id: 'localhost', origin: 'http://localhost' }],
    ['https://127.example.org', { id: '127.example.org', origin: 'https://127.example.org' }],
    ['https://192.0.2.7', null],
    ['https://[2001:db8::1]:7400', null],
  ];
  for (const [public_url, expected] of cases)
    assert.deepEqual(relyingParty(public_url), expected, public_url);
});
