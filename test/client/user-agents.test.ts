/** The names of programs in lists of sessions. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { programName } from '../../client/src/words.ts';

const MAC = 'Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko)';
const NAMES = [
  ['Mozilla/5.0 (X11; Linux x86_64; rv:145.0) Gecko/20100101 Firefox/145.0', 'Firefox on Linux'],
  [`${MAC} Version/18.1 Safari/605.1.15`, 'Safari on macOS'],
  [
    'Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0 Safari/537.36 Edg/142.0',
    'Edge on Windows',
  ],
  [
    'Mozilla/5.0 (Linux; Android 15) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0 Mobile Safari/537.36',
    'Chrome on Android',
  ],
  [
    'Mozilla/5.0 (iPhone; CPU iPhone OS 18_1 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) CriOS/142.0 Mobile/15E148 Safari/604.1',
    'Chrome on iPhone',
  ],
  [
    'Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) HeadlessChrome/142.0 Safari/537.36',
    'Chrome on Linux',
  ],
  ['berth-cli (linux)', 'berth command line on Linux'],
  ['berth-cli', 'berth command line'],
  ['curl/8.14.1', 'curl'],
  ['Explorer/1.0', 'Explorer/1.0'],
  ['', 'unknown program'],
] as const;

test('a program is named with its system, and an unknown one by the beginning of its text', () => {
  assert.deepEqual(
    NAMES.map(([user_agent]) => programName(user_agent)),
    NAMES.map(([, name]) => name),
  );
  assert.equal(programName('x'.repeat(300)), 'x'.repeat(40));
});
