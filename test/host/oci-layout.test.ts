/** OCI layouts that lie about themselves, or lead out of their folder, are refused: what is read of one is inside it. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdirSync, readFileSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { gzipSync } from 'node:zlib';
import { layerEntries, ociLayers } from '../../src/host/images/oci-layout.ts';
import { tarOf } from '../support/tar-maker.ts';

async function workFolder(t: TestContext): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'berth-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  return folder;
}

interface Blob {
  readonly mediaType: string;
  readonly digest: string;
  readonly size: number;
}

function ociFolder(
  folder: string,
  change: (blobs: { layer: Blob; manifest: Blob }) => unknown = () => undefined,
): string {
  mkdirSync(join(folder, 'blobs', 'sha256'), { recursive: true });
  const put = (mediaType: string, body: Buffer): Blob => {
    const hex = createHash('sha256').update(body).digest('hex');
    writeFileSync(join(folder, 'blobs', 'sha256', hex), body);
    return { mediaType, digest: `sha256:${hex}`, size: body.length };
  };
  const layer = put(
    'application/vnd.oci.image.layer.v1.tar+gzip',
    gzipSync(tarOf({ path: 'a', content: 'x' })),
  );
  const manifest = put(
    'application/vnd.oci.image.manifest.v1+json',
    Buffer.from(JSON.stringify({ layers: [layer] })),
  );
  writeFileSync(join(folder, 'oci-layout'), '{"imageLayoutVersion":"1.0.0"}');
  const index = change({ layer, manifest }) ?? { manifests: [manifest] };
  writeFileSync(join(folder, 'index.json'), JSON.stringify(index));
  return folder;
}

async function readLayout(folder: string): Promise<number> {
  let entries = 0;
  for (const layer of await ociLayers(folder))
    for await (const _ of layerEntries(folder, layer)) entries += 1;
  return entries;
}

/** The file names of a layout's two blobs. */
function namesOf(layout: string): { manifest: string; layer: string } {
  const json = (path: string) => JSON.parse(readFileSync(join(layout, path), 'utf8'));
  const manifest = json('index.json').manifests[0].digest.slice(7);
  return { manifest, layer: json(`blobs/sha256/${manifest}`).layers[0].digest.slice(7) };
}

test('an OCI layout is read for this platform, and every blob is verified against its name', async (t) => {
  const folder = await workFolder(t);
  assert.equal(await readLayout(ociFolder(join(folder, 'one'))), 1);
  const arm = { os: 'linux', architecture: 'arm64' };
  const amd = { os: 'linux', architecture: 'amd64' };
  const both = ociFolder(join(folder, 'both'), ({ manifest }) => ({
    manifests: [
      { ...manifest, platform: arm, digest: `sha256:${'0'.repeat(64)}` },
      { ...manifest, platform: amd },
    ],
  }));
  assert.equal(await readLayout(both), 1);
  const refused: [RegExp, Parameters<typeof ociFolder>[1]][] = [
    [/not for linux\/amd64/, ({ manifest }) => ({ manifests: [{ ...manifest, platform: arm }] })],
    [/several images/, ({ manifest }) => ({ manifests: [manifest, manifest] })],
    [
      /invalid blob reference/,
      ({ manifest }) => ({ manifests: [{ ...manifest, digest: 'sha256:../../../../etc/passwd' }] }),
    ],
    [/no blob/, ({ manifest }) => ({ manifests: [{ ...manifest, digest: `sha256:${'0'.repeat(64)}` }] })],
    [/is damaged/, ({ manifest }) => ({ manifests: [{ ...manifest, size: 1 }] })],
    [/no layers/, () => ({ layers: [] })],
  ];
  for (const [i, [why, change]] of refused.entries()) {
    await assert.rejects(readLayout(ociFolder(join(folder, String(i)), change)), {
      name: 'UnusableImageError',
      message: why,
    });
  }
  const damaged = ociFolder(join(folder, 'damaged'), ({ layer }) => {
    const path = join(folder, 'damaged', 'blobs', 'sha256', layer.digest.slice(7));
    const bytes = readFileSync(path);
    // The operating system's field in gzip's header: what is unpacked is the same.
    bytes[9] = 7;
    writeFileSync(path, bytes);
  });
  await assert.rejects(readLayout(damaged), /is damaged/);
});

test('an OCI layout with a link out of its folder is refused before the linked file is read', async (t) => {
  const folder = await workFolder(t);
  let made = 0;
  /** A layout whose `name` is a link to what it was, outside of it. */
  const linked = (name: string, target: (moved: string) => string = (moved) => moved): string => {
    made += 1;
    const layout = ociFolder(join(folder, `layout-${made}`));
    const moved = join(folder, `outside-${made}`);
    renameSync(join(layout, name), moved);
    symlinkSync(target(moved), join(layout, name));
    return layout;
  };
  const { manifest, layer } = namesOf(ociFolder(join(folder, 'names')));
  const names = ['blobs', 'blobs/sha256', 'index.json', 'oci-layout'];
  for (const name of [...names, `blobs/sha256/${manifest}`, `blobs/sha256/${layer}`]) {
    await assert.rejects(readLayout(linked(name)), { name: 'UnusableImageError', message: /a link/ }, name);
  }
  const relative = linked('blobs', (moved) => join('..', moved.slice(folder.length + 1)));
  await assert.rejects(readLayout(relative), { name: 'UnusableImageError', message: /a link/ });
  // The folder itself may be reached by one: whoever names it has chosen it.
  symlinkSync(join(folder, 'names'), join(folder, 'by-link'));
  assert.equal(await readLayout(join(folder, 'by-link')), 1);
});

test('a pipe or a folder in place of a blob is refused without waiting', async (t) => {
  const folder = await workFolder(t);
  const layout = ociFolder(join(folder, 'layout'));
  const blob = join(layout, 'blobs', 'sha256', namesOf(layout).layer);
  for (const replace of [() => execFileSync('mkfifo', [blob]), () => mkdirSync(blob)]) {
    rmSync(blob, { recursive: true });
    replace();
    await assert.rejects(readLayout(layout), { name: 'UnusableImageError', message: /is damaged/ });
  }
});
