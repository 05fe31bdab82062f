/**
 * Starts an installation with one guest for random rounds (crash-rounds.ts). If the disaster is a power cut, the data
 * folder is on a disk whose power can be cut.
 */
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { CrashRounds } from './crash-rounds.ts';
import { CutDisk } from './cut-disk.ts';
import { kills, powerCut } from './disasters.ts';
import { GuestInstance } from './guest-instance.ts';
import { Installation, type InstallationOptions } from './installation.ts';

export const DISASTERS = ['power', 'kill'] as const;

export interface CrashScene extends AsyncDisposable {
  readonly berth: Installation;
  readonly rounds: CrashRounds;
}

export async function crashScene(disaster: (typeof DISASTERS)[number], seed: number): Promise<CrashScene> {
  await using cleanup = new AsyncDisposableStack();
  const key_dir = mkdtempSync(join(tmpdir(), 'bcut-key-'));
  cleanup.defer(() => rmSync(key_dir, { recursive: true, force: true }));
  let disk: CutDisk | undefined;
  cleanup.defer(() => disk?.dispose());
  const onDisk: InstallationOptions = {
    prepare: (data_dir) => {
      const made = new CutDisk(data_dir);
      disk = made;
      return () => made.unmount();
    },
    // The harness copies files there without syncing them.
    seeded: (data_dir) => void execFileSync('sync', ['-f', data_dir]),
  };
  const berth = await Installation.start({ key_dir, ...(disaster === 'power' ? onDisk : {}) });
  cleanup.defer(() => berth.dispose());
  // A session lasts an hour.
  await berth.client.takeKey();
  const guest = await GuestInstance.running(berth, 'crashes');
  const disasters = disk === undefined ? kills(berth, guest) : [powerCut(berth, disk)];
  const rounds = await CrashRounds.begin(berth, disasters, guest, { seed, scratch_dir: key_dir });
  const kept = cleanup.move();
  return { berth, rounds, [Symbol.asyncDispose]: () => kept.disposeAsync() };
}
