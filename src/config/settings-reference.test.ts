import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseConfig } from './config.ts';
import { SETTINGS } from './settings.ts';
import { SETTING_TEXTS } from './settings-reference.ts';

test('every setting is described, and no other', () => {
  assert.deepEqual(Object.keys(SETTING_TEXTS).sort(), [...SETTINGS].sort());
});

test('a described default has the same effect as no setting', () => {
  // Without it the settings of traces are not read.
  const traced = { OTEL_EXPORTER_OTLP_ENDPOINT: 'http://127.0.0.1:4318' };
  for (const env of [{}, traced]) {
    const unset = parseConfig(env, '/tmp');
    assert.ok(unset.ok);
    for (const [name, text] of Object.entries(SETTING_TEXTS)) {
      if (text.default === null) continue;
      assert.deepEqual(parseConfig({ ...env, [name]: text.default }, '/tmp'), unset, name);
    }
  }
});
