import assert from 'node:assert/strict';
import { test } from 'node:test';
import { newId } from '../../../shared/ids.ts';
import { readClaims, wantedRoles } from './claims.ts';

const ISSUER = 'https://id.example.org';
const of = (claims: object, issuer = ISSUER) => readClaims(issuer, { sub: 'a', ...claims });

test('an address counts only where the provider says that it is verified', () => {
  const email = 'ada@example.org';
  assert.equal(of({ email, email_verified: true })?.verified_email, email);
  const unsure = [
    {},
    { email_verified: false },
    { email_verified: 'true' },
    { email_verified: 1 },
    { xms_edov: '0' },
    { xms_edov: true },
  ];
  for (const claims of unsure) assert.equal(of({ email, ...claims })?.verified_email, null);
  for (const bad of ['ada', 'a b@example.org', `${'a'.repeat(252)}@b.c`, 7, null]) {
    assert.equal(of({ email: bad, email_verified: true })?.verified_email, null);
  }
});

test('xms_edov counts at Microsoft Entra alone, which defines it', () => {
  const email = 'ada@example.org';
  const tenant = '/11111111-2222-3333-4444-555555555555/v2.0';
  const entra = [
    'https://login.microsoftonline.com',
    'https://login.microsoftonline.us',
    'https://login.partner.microsoftonline.cn',
  ];
  for (const host of entra) {
    assert.equal(of({ email, xms_edov: '1' }, host + tenant)?.verified_email, email);
    assert.equal(of({ email, xms_edov: '0' }, host + tenant)?.verified_email, null);
  }
  const others = [
    ISSUER,
    `https://login.microsoftonline.com.example.org${tenant}`,
    `https://example.org/login.microsoftonline.com${tenant}`,
    `http://login.microsoftonline.com${tenant}`,
    'https://login.microsoftonline.com/v2.0',
  ];
  for (const issuer of others) assert.equal(of({ email, xms_edov: '1' }, issuer)?.verified_email, null);
});

test('a subject is a text of 1 to 255 characters', () => {
  for (const sub of ['', 7, null, undefined, 'x'.repeat(256)])
    assert.equal(readClaims(ISSUER, { sub }), null);
  assert.equal(readClaims(ISSUER, { sub: '7' })?.subject, '7');
});

test('absent groups are none, and groups that the token has no room for are unknown', () => {
  assert.deepEqual(of({})?.groups, []);
  assert.deepEqual(of({ groups: 'staff' })?.groups, ['staff']);
  assert.deepEqual(of({ groups: ['staff', 7, null] })?.groups, ['staff']);
  assert.equal(of({ _claim_names: { groups: 'src1' } })?.groups, null);
  assert.equal(of({ hasgroups: true })?.groups, null);
});

test('a name has at most 100 printable characters', () => {
  assert.equal(of({ name: ' Ada\u0000\u202e Lovelace\n' })?.name, 'Ada Lovelace');
  assert.equal(of({ name: ' ', preferred_username: 'ada' })?.name, 'ada');
  const written_with_joiners = 'علی\u200cرضا 👩\u200d💻';
  assert.equal(of({ name: `\u200d${written_with_joiners}` })?.name, written_with_joiners);
  assert.equal(of({ name: 'x'.repeat(200) })?.name.length, 100);
  assert.equal(of({})?.name, '');
});

test('of several roles in one organisation the strongest counts', () => {
  const [one, other] = [newId('org'), newId('org')];
  const mapping = [
    { group: 'staff', org_id: one, role: 'member' },
    { group: 'leads', org_id: one, role: 'admin' },
    { group: 'money', org_id: one, role: 'billing' },
    { group: 'staff', org_id: other, role: 'billing' },
  ] as const;
  assert.deepEqual(
    [...wantedRoles(mapping, ['money', 'leads', 'staff'])],
    [
      [one, 'admin'],
      [other, 'billing'],
    ],
  );
  assert.deepEqual([...wantedRoles(mapping, ['Staff'])], []);
});
