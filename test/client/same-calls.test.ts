/** The TypeScript client and both shapes of the Python client make the same calls of one table, and get the same. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { apiForFile } from '../support/api.ts';
import { makeKey } from '../support/people.ts';
import { clientsWith, pythonClient } from '../support/python-client.ts';
import { type Call, judge } from '../support/run-calls.ts';

const api = await apiForFile();
const python = await pythonClient();
const calls = JSON.parse(readFileSync(join(import.meta.dirname, 'calls.json'), 'utf8')) as Call[];

for (const { name, run } of clientsWith(python)) {
  describe(name, async () => {
    const { key } = await makeKey(api.db, await api.person(), '*');
    const outcomes = await run(calls, { url: api.origin, key });
    for (const [index, call] of calls.entries())
      test(`${index + 1}. ${call.does}`, () => judge(call, outcomes[index]));
  });
}
