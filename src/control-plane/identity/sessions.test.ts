import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { test } from 'node:test';
import { firstRefreshToken, RefreshTokens, refreshToken } from './sessions.ts';
import { newToken, REFRESH_PREFIX, tokenPrefix } from './tokens.ts';

const tokens = new RefreshTokens(randomBytes(32));

test('the next token is well-formed, of the same family, and another one', () => {
  const first = firstRefreshToken();
  const next = tokens.next(first);
  assert.equal(tokenPrefix(next.token), REFRESH_PREFIX);
  assert.deepEqual(next.family_hash, first.family_hash);
  assert.notDeepEqual(next.token_hash, first.token_hash);
  assert.deepEqual(tokens.next(refreshToken(first.token)), next, 'always the same one');
});

test('two sessions have two families', () => {
  assert.notDeepEqual(firstRefreshToken().family_hash, firstRefreshToken().family_hash);
});

test('without the server’s key the next token is not known', () => {
  const first = firstRefreshToken();
  assert.notEqual(new RefreshTokens(randomBytes(32)).next(first).token, tokens.next(first).token);
});

test('a later token is found by its hash, and no other one', () => {
  const first = firstRefreshToken();
  const third = tokens.next(tokens.next(first));
  assert.deepEqual(tokens.find(first, third.token_hash), third);
  assert.equal(tokens.find(first, refreshToken(newToken(REFRESH_PREFIX)).token_hash), null);
});
