/** The committed API document against Spectral's OpenAPI rules and the OWASP rules, as `.spectral.yaml` has them. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { test } from 'node:test';
import { promisify } from 'node:util';

const PROJECT = join(import.meta.dirname, '..', '..');
const SPECTRAL = join(PROJECT, 'node_modules', '@stoplight', 'spectral-cli', 'dist', 'index.js');

test('Spectral finds no error and no warning in openapi/v1.json', async () => {
  const options = { cwd: PROJECT, maxBuffer: 64 * 1024 * 1024 };
  const linted = promisify(execFile)(
    process.execPath,
    [SPECTRAL, 'lint', '--ruleset', '.spectral.yaml', '--fail-severity', 'warn', 'openapi/v1.json'],
    options,
  );
  await linted.catch((error: { stdout?: string }) => assert.fail(error.stdout ?? String(error)));
});
