import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import fc from 'fast-check';
import {
  createOverlay,
  FILLED,
  growOverlay,
  NoSpaceError,
  type OverlaySidecar,
  overlayPaths,
  readSidecar,
  removeAside,
  removeOverlay,
  setAsideOverlay,
  writeSidecar,
} from '../../src/host/disk/overlay-files.ts';
import { newId } from '../../src/shared/ids.ts';

const SIDECAR: OverlaySidecar = {
  ...{ generation: 4, commit_id: randomUUID(), vm_id: newId('vm'), placement: 3 },
  ...{ clean: true, sync_failed: false, filled: 'yes', image_version: null },
};
const is_root = process.getuid?.() === 0;

describe('an overlay', () => {
  const folder = mkdtempSync(join(tmpdir(), 'bovl-'));
  const instance_id = newId('inst');
  const size_bytes = 1024 ** 3;
  const qemu_img_binary = 'qemu-img';
  after(() => rmSync(folder, { recursive: true, force: true }));

  test('is empty, of the requested size, with 4 KiB sub-clusters, private to the VM’s user', async () => {
    const owner = is_root ? { owner: { uid: 2_000_001, gid: 2_000_001 } } : {};
    const { overlay } = await createOverlay({ folder, instance_id, size_bytes, qemu_img_binary, ...owner });
    const info = JSON.parse(execFileSync('qemu-img', ['info', '--output=json', overlay]).toString());
    assert.equal(info['virtual-size'], size_bytes);
    assert.equal(info['cluster-size'], 128 * 1024);
    assert.equal(info['format-specific'].data['extended-l2'], true);
    assert.equal(info['backing-filename'], undefined);
    assert.equal(statSync(overlay).mode & 0o777, 0o600);
    if (is_root) assert.equal(statSync(overlay).uid, 2_000_001);
  });

  test('grows with its disk and keeps its content; one of that size is unchanged', async () => {
    const { overlay } = await createOverlay({ folder, instance_id, size_bytes, qemu_img_binary });
    const io = (command: string) =>
      execFileSync('qemu-io', ['-f', 'qcow2', '-c', command, overlay]).toString();
    io(`write -P 7 ${size_bytes - 65_536} 65536`);
    await growOverlay({ folder, instance_id, size_bytes: 3 * size_bytes, jail: null, qemu_img_binary });
    const info = JSON.parse(execFileSync('qemu-img', ['info', '--output=json', overlay]).toString());
    assert.equal(info['virtual-size'], 3 * size_bytes);
    assert.match(io(`read -P 7 ${size_bytes - 65_536} 65536`), /read 65536\/65536/);
    assert.doesNotMatch(io(`read -P 0 ${size_bytes} 65536`), /failed/);
    await growOverlay({
      folder,
      instance_id,
      size_bytes: 3 * size_bytes,
      jail: null,
      qemu_img_binary: '/nonexistent',
    });
    execFileSync('qemu-img', ['check', '-q', overlay]);
  });

  test('replaced by a new one, loses its sidecar', async () => {
    await writeSidecar(folder, instance_id, SIDECAR);
    await createOverlay({ folder, instance_id, size_bytes, qemu_img_binary });
    assert.equal(await readSidecar(folder, instance_id), 'none');
  });

  test('has the last of several concurrently written sidecars', async () => {
    const sidecars = Array.from({ length: 8 }, (_, generation) => ({ ...SIDECAR, generation }));
    await Promise.all(sidecars.map((each) => writeSidecar(folder, instance_id, each)));
    assert.deepEqual(await readSidecar(folder, instance_id), sidecars.at(-1));
  });

  test('has a sidecar that is read as it was written', async () => {
    const count = fc.maxSafeNat();
    const sidecars = fc.record({
      ...{ generation: count, placement: count, clean: fc.boolean(), filled: fc.constantFrom(...FILLED) },
      ...{ commit_id: fc.uuid(), vm_id: fc.constant(SIDECAR.vm_id), sync_failed: fc.boolean() },
      image_version: fc.constantFrom(null, 'a'.repeat(64)),
    });
    await fc.assert(
      fc.asyncProperty(sidecars, async (written) => {
        await writeSidecar(folder, instance_id, written);
        assert.deepEqual({ ...((await readSidecar(folder, instance_id)) as object) }, { ...written });
      }),
      { numRuns: 20 },
    );
  });

  test('has a damaged sidecar if that is torn, foreign or out of range', async () => {
    const without = (name: keyof OverlaySidecar) => ({ ...SIDECAR, [name]: undefined });
    const values: unknown[] = [null, [], ...(Object.keys(SIDECAR) as (keyof OverlaySidecar)[]).map(without)];
    for (const generation of [-1, 1.5]) values.push({ ...SIDECAR, generation });
    values.push({ ...SIDECAR, filled: true }, { ...SIDECAR, image_version: 1 });
    for (const text of ['', '{"generation":1', ...values.map((value) => JSON.stringify(value))]) {
      writeFileSync(overlayPaths(folder, instance_id).sidecar, text);
      assert.equal(await readSidecar(folder, instance_id), 'damaged', text);
    }
  });

  test('is not used or removed once it is set aside, until its instance is deleted', async () => {
    const { overlay } = await createOverlay({ folder, instance_id, size_bytes, qemu_img_binary });
    await writeSidecar(folder, instance_id, SIDECAR);
    const bytes = readFileSync(overlay);
    const kept = await setAsideOverlay(folder, instance_id);
    await removeOverlay(folder, instance_id);
    assert.equal(await readSidecar(folder, instance_id), 'none');
    assert(readFileSync(kept).equals(bytes));
    assert.deepEqual(JSON.parse(readFileSync(kept.replace(/qcow2$/, 'json'), 'utf8')), SIDECAR);
    assert.deepEqual(
      [statSync(kept).uid, statSync(join(kept, '..')).mode & 0o777],
      [process.getuid?.(), 0o700],
    );
    await removeAside(folder, newId('inst'));
    assert(existsSync(kept));
    await removeAside(folder, instance_id);
    assert.deepEqual(readdirSync(join(kept, '..')), []);
    rmSync(join(kept, '..'), { recursive: true });
  });

  test('is removed completely, and may be removed again', async () => {
    await removeOverlay(folder, instance_id);
    await removeOverlay(folder, instance_id);
    assert.deepEqual(readdirSync(folder), []);
  });

  test('is never created from a hostile instance id', () => {
    for (const id of ['../x', 'inst_../../x', 'inst_', '']) {
      assert.throws(() => overlayPaths(folder, id), { name: 'InvariantError' });
    }
  });

  test('reports a full disk, and leaves no partial file', {
    skip: is_root ? false : 'mounting a small file system takes root',
  }, async () => {
    const small = join(folder, 'small');
    execFileSync('mkdir', [small]);
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=128k', 'tmpfs', small]);
    try {
      await assert.rejects(
        createOverlay({ folder: small, instance_id, size_bytes: 2 ** 40, qemu_img_binary }),
        NoSpaceError,
      );
      assert.equal(existsSync(overlayPaths(small, instance_id).overlay), false);
      await writeSidecar(small, instance_id, { ...SIDECAR, generation: 1 });
      execFileSync('sh', ['-c', `cat /dev/zero > ${small}/fill 2> /dev/null || true`]);
      const full = writeSidecar(small, instance_id, { ...SIDECAR, generation: 2 });
      await assert.rejects(full, NoSpaceError);
      assert.deepEqual(await readSidecar(small, instance_id), { ...SIDECAR, generation: 1 });
    } finally {
      execFileSync('umount', [small]);
    }
  });
});
