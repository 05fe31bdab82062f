/** What a host of a fleet is refused for, before anything else happens. */
import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import type { Config } from '../config/config.ts';
import { parseConfig } from '../config/config.ts';
import { pathsIn } from '../config/paths.ts';
import { checkMachine } from './machine.ts';

const checkJoin = (config: Config) => checkMachine('host', config, pathsIn(config.data_dir));

test('a host of a fleet needs its token, and is refused with a bucket', async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'berth-join-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  const token_path = join(folder, 'token');
  const config = (more: Record<string, string>) => {
    const joined = {
      BERTH_CONTROL_PLANE: 'https://berth.example.org:7500',
      BERTH_HOST_TOKEN_FILE: token_path,
    };
    const parsed = parseConfig({ BERTH_DATA_DIR: folder, ...joined, ...more }, '/');
    assert(parsed.ok);
    return parsed.config;
  };
  await assert.rejects(checkJoin(config({})), /BERTH_HOST_TOKEN_FILE: .* cannot be read/);
  await writeFile(token_path, `berth_host_${'x'.repeat(49)}.${'A'.repeat(43)}\n`);
  await checkJoin(config({}));
  await assert.rejects(checkJoin(config({ BERTH_S3_BUCKET: 'berth' })), {
    message: /^BERTH_S3_BUCKET: is set, but a host of a fleet has no bucket: .* Remove BERTH_S3_… /,
    exit_code: 2,
  });
  // For other programs: without a bucket Berth does not look at them.
  await checkJoin(config({ AWS_ACCESS_KEY_ID: 'id', AWS_SECRET_ACCESS_KEY: 'secret' }));
});
