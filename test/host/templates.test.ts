/** Templates as files and as what runners ask for; what guests make of them is in test/guest/fast-start.test.ts. */
import assert from 'node:assert/strict';
import {
  appendFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, beforeEach, describe, test } from 'node:test';
import { BootSlots } from '../../src/host/boot-slots.ts';
import type { LocalImage } from '../../src/host/images/host-images.ts';
import { readHostImage } from '../../src/host/images/host-images.ts';
import {
  boundTemplates,
  findTemplate,
  MAX_AGE_MS,
  MAX_TEMPLATES,
  makingFolder,
  openMemory,
  publishTemplate,
  type Shape,
  templateKey,
  verifyMemory,
  writeMemory,
} from '../../src/host/vm/template-files.ts';
import { Templates } from '../../src/host/vm/templates.ts';
import { createLog } from '../../src/shared/log.ts';
import { writeHostImage } from '../support/host-image.ts';
import { until } from '../support/waiting.ts';

describe('templates', () => {
  const root = mkdtempSync(join(tmpdir(), 'btpl-'));
  const templates_dir = join(root, 'templates');
  const images_dir = join(root, 'images');
  let image: LocalImage;
  let shape: Shape;
  after(() => rmSync(root, { recursive: true, force: true }));
  beforeEach(async () => {
    for (const folder of [templates_dir, images_dir]) {
      rmSync(folder, { recursive: true, force: true });
      mkdirSync(folder);
    }
    const folder = join(images_dir, 'debian-12', 'a'.repeat(12));
    await writeHostImage(folder, 'debian-12', Buffer.alloc(4096));
    const found = await readHostImage(folder, true);
    assert(found);
    image = found;
    shape = { image, cpus: 1, memory_mib: 256, accel: 'tcg', network: 'user' };
  });

  async function* stream(...chunks: string[]) {
    for (const chunk of chunks) yield Buffer.from(chunk);
  }
  const traits = () => ({ qemu: '7.2', hardware: 'h', host_cpu: '', image_version: image.version });
  async function make(key = templateKey(shape), text = 'memory') {
    mkdirSync(makingFolder(templates_dir));
    const written = await writeMemory(templates_dir, stream(text.slice(0, 2), text.slice(2)), 100);
    await publishTemplate(templates_dir, key, { traits: traits(), ...written });
    rmSync(makingFolder(templates_dir), { recursive: true });
    return key;
  }
  async function read(key: string): Promise<string> {
    const template = await findTemplate(templates_dir, key);
    assert(template);
    await using file = await openMemory(template);
    await verifyMemory(file, template);
    return file.readFile('utf8');
  }

  test('a template has the written content, readable by its owner only', async () => {
    const key = await make();
    assert.equal(await read(key), 'memory');
    assert.equal(statSync(join(templates_dir, key)).mode & 0o777, 0o700);
    assert.equal(statSync(join(templates_dir, key, 'memory')).mode & 0o777, 0o600);
    await make(key, 'newer');
    assert.equal(await read(key), 'newer');
  });

  test('a template appears only when complete, and files of a crash are removed', async () => {
    mkdirSync(makingFolder(templates_dir));
    const written = await writeMemory(templates_dir, stream('half'), 100);
    assert.equal(await findTemplate(templates_dir, templateKey(shape)), null);
    await boundTemplates(templates_dir, () => true);
    assert(!existsSync(makingFolder(templates_dir)));
    await assert.rejects(
      publishTemplate(templates_dir, templateKey(shape), { traits: traits(), ...written }),
    );
    mkdirSync(makingFolder(templates_dir));
    await assert.rejects(writeMemory(templates_dir, stream('too', 'long'), 6), /larger than 6/);
  });

  test('a template that is damaged, truncated, without description, or too old is not used', async () => {
    const key = await make();
    const memory = join(templates_dir, key, 'memory');
    writeFileSync(memory, 'memorz');
    await assert.rejects(read(key), /damaged/);
    writeFileSync(memory, 'memor');
    assert.equal(await findTemplate(templates_dir, key), null);
    writeFileSync(memory, 'memory');
    assert(await findTemplate(templates_dir, key));
    const description = join(templates_dir, key, 'template.json');
    const text = readFileSync(description, 'utf8');
    const made_at_ms = Date.now() - MAX_AGE_MS - 1;
    writeFileSync(description, JSON.stringify({ ...JSON.parse(text), made_at_ms }));
    assert.equal(await findTemplate(templates_dir, key), null);
    writeFileSync(description, text.slice(0, 20));
    assert.equal(await findTemplate(templates_dir, key), null);
  });

  test("a template's digest is verified once for each file; a write or a replacement is detected", async () => {
    const key = await make();
    const templates = templatesWith();
    const look = async () => {
      const template = await templates.find(shape);
      assert(template);
      const { file, verified } = await templates.open(template);
      await verified.finally(() => file.close());
    };
    await look();
    await look();
    const memory = join(templates_dir, key, 'memory');
    let at = 1;
    // A file system's clock may stand still for some milliseconds; this one's does not.
    const write = (text: string) => {
      writeFileSync(memory, text);
      utimesSync(memory, at, at++);
    };
    write('memorz');
    await assert.rejects(look(), /damaged/);
    write('memory');
    await look();
    rmSync(memory);
    write('nemory');
    await assert.rejects(look(), /damaged/);
  });

  test('a template belongs to one image, kernel, initramfs and size', () => {
    const other = (change: Partial<Shape>) => templateKey({ ...shape, ...change });
    const files = { ...image.manifest.files, 'initrd.img': 'f'.repeat(64) };
    const keys = [
      ...[other({}), other({ cpus: 2 }), other({ memory_mib: 512 }), other({ accel: 'kvm' })],
      other({ image: { ...image, version: 'e'.repeat(64) } }),
      other({ image: { ...image, manifest: { ...image.manifest, files } } }),
    ];
    assert.equal(new Set(keys).size, keys.length);
    assert.equal(other({ image: { ...image, folder: '/elsewhere', newest: false } }), keys[0]);
  });

  test('the least recently used templates, and those of removed images, are removed', async () => {
    const keys = Array.from({ length: MAX_TEMPLATES + 2 }, (_, at) => String(at % 10).repeat(32));
    for (const [at, key] of keys.entries()) {
      await make(key);
      utimesSync(join(templates_dir, key, 'template.json'), at, at);
    }
    await boundTemplates(templates_dir, () => true);
    assert.deepEqual(
      keys.filter((key) => existsSync(join(templates_dir, key))),
      keys.slice(2),
    );
    await boundTemplates(templates_dir, () => false);
    assert.deepEqual(
      keys.filter((key) => existsSync(join(templates_dir, key))),
      [],
    );
  });

  const templatesWith = (more: { enabled?: boolean; qemu_binary?: string } = {}) =>
    new Templates({
      ...{
        enabled: true,
        templates_dir,
        images_dir,
        accel: 'tcg',
        network: 'user',
        boots: new BootSlots(),
        log: createLog('test', 'silent'),
      },
      ...{
        images: { forDisk: async () => image },
        qemu_binary: '/bin/false',
        qemu_img_binary: 'qemu-img',
        run_as: null,
        jail: null,
      },
      ...more,
    });

  test('a template that failed is removed; after the second failure none is tried; with BERTH_FAST_START=off there is none', async () => {
    const templates = templatesWith();
    for (const after of [1, 2]) {
      const key = await make();
      assert.equal((await templates.find(shape))?.key, key);
      await templates.reject({ key });
      assert(!existsSync(join(templates_dir, key)), `rejected ${after}`);
    }
    await make();
    assert.equal(await templates.find(shape), null);
    assert(await templatesWith().find(shape));
    assert.equal(await templatesWith({ enabled: false }).find(shape), null);
  });

  test('a template that cannot be made leaves nothing, and is not tried again', async (t) => {
    const tries = join(root, 'tries');
    const qemu_binary = join(root, 'qemu');
    writeFileSync(qemu_binary, `#!/bin/sh\necho >> ${tries}\nexit 1\n`, { mode: 0o755 });
    appendFileSync(tries, '');
    // As a killed agent leaves it.
    mkdirSync(join(makingFolder(templates_dir), 'run'), { recursive: true });
    const templates = templatesWith({ qemu_binary });
    const ended = new AbortController();
    const running = templates.run(ended.signal);
    t.after(() => ended.abort());
    const wanted = { image: 'debian-12', image_version: image.version, cpus: 1, memory_mib: 256 };
    templates.want(wanted);
    await until('it was tried', () => readFileSync(tries, 'utf8').length === 1);
    await until('nothing is left', () => !existsSync(makingFolder(templates_dir)));
    templates.want(wanted);
    templates.want({ ...wanted, cpus: 2 });
    await until('the other kind was tried', () => readFileSync(tries, 'utf8').length === 2);
    await until('nothing is left', () => !existsSync(makingFolder(templates_dir)));
    ended.abort();
    await running;
    assert.equal(readFileSync(tries, 'utf8').length, 2);
  });
});
