/**
 * Lends one installation to the test files that import this. `bin/run-tests.ts` runs these files in one process, where
 * they borrow the installation one after the other. Each file finds no instances, and one SSH key that was never used.
 * If the cleanup after a file fails, that file fails, and the next one gets a new installation.
 */
import { mkdtempSync } from 'node:fs';
import { join } from 'node:path';
import { after } from 'node:test';
import { Installation } from './installation.ts';
import { SshClient } from './ssh-client.ts';
import { until } from './waiting.ts';

let shared: Installation | undefined;

export async function borrowInstallation(): Promise<Installation> {
  shared ??= await Installation.start();
  return shared;
}

/** For an `after` hook: also a file that failed returns it. */
export async function returnInstallation(): Promise<void> {
  if (shared === undefined) return;
  try {
    await empty(shared);
  } catch (error) {
    await disposeShared();
    throw error;
  }
}

async function empty(berth: Installation): Promise<void> {
  const idsAt = async (path: string) =>
    (await berth.client.expect<{ data: { id: string }[] }>(200, 'GET', `${path}?limit=100`)).data;
  for (const { id } of await idsAt('/v1/instances'))
    await berth.client.expect([202, 404], 'DELETE', `/v1/instances/${id}`);
  await until('its instances are gone', async () => (await idsAt('/v1/instances')).length === 0);
  for (const { id } of await idsAt('/v1/me/ssh-keys'))
    await berth.client.expect(204, 'DELETE', `/v1/me/ssh-keys/${id}`);
  // It trusts no host yet, and has no connection to a guest of before.
  berth.ssh = new SshClient(mkdtempSync(join(berth.data_dir, 'ssh-')), 'admin-key');
  await berth.registerKey();
}

async function disposeShared(): Promise<void> {
  const berth = shared;
  shared = undefined;
  await berth?.dispose();
}

after(disposeShared);
