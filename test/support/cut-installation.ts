/** An installation whose data folder lies on a disk that can be cut, and a guest on it. */
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { CutDisk } from './cut-disk.ts';
import { GuestInstance } from './guest-instance.ts';
import { Installation } from './installation.ts';
import { PowerCuts } from './power-cuts.ts';

export interface CutScene extends AsyncDisposable {
  readonly berth: Installation;
  readonly cuts: PowerCuts;
}

export async function cutInstallation(seed: number): Promise<CutScene> {
  await using cleanup = new AsyncDisposableStack();
  const key_dir = mkdtempSync(join(tmpdir(), 'bcut-key-'));
  cleanup.defer(() => rmSync(key_dir, { recursive: true, force: true }));
  let disk: CutDisk | undefined;
  cleanup.defer(() => disk?.dispose());
  const prepare = (data_dir: string) => {
    const made = new CutDisk(data_dir);
    disk = made;
    return () => made.unmount();
  };
  // What the tests put there is copied without being synced.
  const seeded = (data_dir: string) => void execFileSync('sync', ['-f', data_dir]);
  const berth = await Installation.start({ prepare, seeded, key_dir });
  cleanup.defer(() => berth.dispose());
  if (disk === undefined) throw new Error('the disk is mounted before the first start');
  // A session lasts an hour.
  await berth.client.takeKey();
  const guest = await GuestInstance.running(berth, 'cuts');
  const cuts = await PowerCuts.begin(berth, disk, guest, seed);
  const kept = cleanup.move();
  return { berth, cuts, [Symbol.asyncDispose]: () => kept.disposeAsync() };
}
