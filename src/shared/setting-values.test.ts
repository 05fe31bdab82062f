import assert from 'node:assert/strict';
import { test } from 'node:test';
import { serverUrls } from './setting-values.ts';

test('a URL of one server stays as it is', () => {
  for (const url of [
    'postgres://u:p@h/db',
    'postgresql://u:p%40@h:5433/db?sslmode=require',
    'postgresql://berth@localhost:5432/berth?host=%2Fdata%2Csocket',
    'postgresql://berth@/berth?host=/nowhere',
    'postgres://u@[2001:db8::1]:5432/db',
  ]) {
    assert.deepEqual(serverUrls(url), [url]);
  }
});

test('a URL of several servers becomes one of each, with their ports, and without what only names the one that is wanted', () => {
  assert.deepEqual(
    serverUrls('postgres://u:p%2C@a:5432,b,[::1]:5434/db?sslmode=require&target_session_attrs=read-write'),
    [
      'postgres://u:p%2C@a:5432/db?sslmode=require',
      'postgres://u:p%2C@b/db?sslmode=require',
      'postgres://u:p%2C@[::1]:5434/db?sslmode=require',
    ],
  );
  assert.deepEqual(serverUrls('postgres://a,b/db'), ['postgres://a/db', 'postgres://b/db']);
  assert.deepEqual(serverUrls('postgres://a/db?target_session_attrs=primary'), ['postgres://a/db']);
});

test('what libpq would take otherwise, or not at all, is refused', () => {
  for (const url of [
    'mysql://u@h/db',
    'postgres://u@h',
    'postgres://u@h/',
    'postgres://u@a,/db',
    'postgres://u@,/db',
    'postgres://u@a:x,b/db',
    'postgres://u@a,b/db?port=5433',
    'postgres://u@a,b/db?host=c',
    'postgres://u@a,b/db?target_session_attrs=any',
    'postgres://u@a/db?target_session_attrs=read-only',
    ' postgres://u@a/db',
    `postgres://${'a,'.repeat(16)}a/db`,
  ]) {
    assert.equal(serverUrls(url), null, url);
  }
});
