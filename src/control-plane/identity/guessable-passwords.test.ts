import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { guessableBecause, PASSWORD_MIN_LENGTH } from './passwords.ts';

const LIST = readFileSync(join(import.meta.dirname, 'common-passwords.txt'), 'utf8');
const listed = LIST.trimEnd().split('\n');
const EMAIL = 'ada.lovelace@example.org';

test('the list has 10,000 passwords that are long enough, in lower case, each once', () => {
  assert.equal(listed.length, 10_000);
  assert.equal(new Set(listed).size, 10_000);
  assert.deepEqual(
    listed.filter((each) => [...each].length < PASSWORD_MIN_LENGTH || each !== each.toLowerCase().trim()),
    [],
  );
});

test('each listed password is refused, in upper and lower case', () => {
  for (const each of listed) assert.match(guessableBecause(each, null) ?? '', /most used/, each);
  for (const each of ['Password1234', 'QWERTYUIOP123', 'ADMINISTRATOR']) {
    assert.match(guessableBecause(each, EMAIL) ?? '', /most used/, each);
  }
});

test('a prefix of a listed password, an extension, and two together are not in the list', () => {
  const [first = '', second = ''] = listed;
  for (const each of [`${first} harbour`, first.slice(1), `${first}\n${second}`, '', '\n']) {
    assert.equal(guessableBecause(each, EMAIL), null, each);
  }
});

test('a password made of the address or the name of the program is rejected', () => {
  for (const each of [
    EMAIL,
    'Ada.Lovelace1!',
    'ada.lovelace-ada.lovelace',
    'berthberthberth',
    'Berth-berth-24',
    'ada.lovelace@berth',
  ]) {
    assert.match(guessableBecause(each, EMAIL) ?? '', /e-mail address/, each);
  }
});

test('a password with enough other characters is accepted, and a short address does not count', () => {
  for (const each of ['ada.lovelace harbour', 'the berth is taken', 'correct horse battery']) {
    assert.equal(guessableBecause(each, EMAIL), null, each);
  }
  assert.equal(guessableBecause('aaaaaa-aaaaaa', 'a@example.org'), null);
});
