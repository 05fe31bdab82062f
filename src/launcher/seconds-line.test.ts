import assert from 'node:assert/strict';
import { PassThrough } from 'node:stream';
import { test } from 'node:test';
import { SecondsLine } from './seconds-line.ts';

const ERASE = '\r\u001b[2K';

test('output replaces the elapsed seconds, and the end removes them', (t) => {
  t.mock.timers.enable({ apis: ['setInterval'] });
  const out = new PassThrough({ encoding: 'utf8' });
  const line = new SecondsLine(out);
  t.mock.timers.tick(1_000);
  line.say('step 2');
  line.end();
  t.mock.timers.tick(5_000);
  assert.equal(String(out.read()).replace(/\d+ s/, 'N s'), `${ERASE}… N s${ERASE}step 2\n${ERASE}`);
});
