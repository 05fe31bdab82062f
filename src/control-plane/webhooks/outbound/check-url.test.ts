import assert from 'node:assert/strict';
import { test } from 'node:test';
import { AppError } from '../../../shared/errors.ts';
import { checkUrl } from './check-url.ts';

const LOOPBACK = [{ address: '127.0.0.0', prefix: 8 }];

function refused(text: string, allow: Parameters<typeof checkUrl>[1] = []): void {
  assert.throws(
    () => checkUrl(text, allow),
    (error) =>
      error instanceof AppError && error.code === 'INVALID_REQUEST' && error.details?.[0]?.field === 'url',
    text,
  );
}

test('an https URL with a name or a public address is accepted', () => {
  for (const text of [
    ...[
      'https://example.org',
      'https://example.org:8443/hook?x=1',
      'https://8.8.8.8/',
      'https://[2606:4700::1]/',
    ],
    ...[
      'https://no-such-name.invalid/',
      'https://münchen.example/hook',
      `https://example.org/${'a'.repeat(2027)}`,
    ],
  ]) {
    assert.equal(checkUrl(text, []).protocol, 'https:', text);
  }
});

test('other URLs are refused', () => {
  for (const text of [
    ...[
      '',
      'example.org',
      '/hook',
      'http://example.org/',
      'ftp://example.org/',
      'file:///etc/passwd',
      'https://',
    ],
    ...[
      'https://u@example.org/',
      'https://u:p@example.org/',
      'https://:p@example.org/',
      'https://example.org/#f',
    ],
    ...[
      'https://example.org/#',
      'https://example.org:0/',
      'https://example.org:70000/',
      ' https://example.org/',
    ],
    ...[
      'https://exam\nple.org/',
      'https://example.org/\u0000',
      'https://exa mple.org/',
      'javascript:alert(1)',
    ],
    `https://example.org/${'a'.repeat(2030)}`,
    `https://example.org/${'ü'.repeat(500)}`,
  ]) {
    refused(text);
  }
});

/** The same machine, in every notation that the URL standard knows. */
const NOTATIONS = [
  ...['127.0.0.1', '127.1', '127.0.1', '2130706433', '0x7f000001', '0x7f.1', '017700000001', '0177.0.0.01'],
  ...[
    '127.0.0.1.',
    '%31%32%37.0.0.1',
    '１２７.０.０.１',
    '127。0。0。1',
    '0',
    '0x0',
    '[::1]',
    '[::]',
    '[0:0:0:0:0:0:0:1]',
  ],
  ...[
    '[::ffff:127.0.0.1]',
    '[::ffff:7f00:1]',
    '[::127.0.0.1]',
    '[64:ff9b::7f00:1]',
    '[2002:7f00:1::]',
    '[2001::1]',
  ],
  ...[
    '169.254.169.254',
    '2852039166',
    '0xa9fea9fe',
    '0251.0376.0251.0376',
    '10.0.0.1',
    '167772161',
    '192.168.257',
  ],
  ...[
    '[fe80::1]',
    '[fe80::1%25eth0]',
    '[fe80::1%eth0]',
    '[fd00::1]',
    '100.64.0.1',
    '224.0.0.1',
    '168.63.129.16',
  ],
];

for (const host of NOTATIONS) {
  test(`https://${host}/ is refused`, () => refused(`https://${host}/`));
}

test('http is for allowed networks', () => {
  for (const text of [
    'http://127.0.0.1:9/',
    'http://2130706433/',
    'http://receiver.example/',
    'https://127.0.0.1/',
  ]) {
    checkUrl(text, LOOPBACK);
  }
  for (const text of [
    'http://10.0.0.1/',
    'http://8.8.8.8/',
    'http://[::1]/',
    'https://[::ffff:127.0.0.1]/',
  ]) {
    refused(text, LOOPBACK);
  }
});
