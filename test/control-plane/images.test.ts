/** Images: the list, the version that a disk is based on, and that a needed version cannot be removed. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { transaction } from '../../src/control-plane/db/pool.ts';
import { removeImage } from '../../src/control-plane/images/register-image.ts';
import type { InstanceId } from '../../src/shared/ids.ts';
import { apiForFile, newName } from '../support/api.ts';
import { assertError } from '../support/expect.ts';
import { instanceIn } from '../support/states.ts';

const api = await apiForFile();
const { db, agent } = api;
const owner = await api.person();
const client = api.as(owner);

const GIB = 2 ** 30;
const version = (digit: string) => digit.repeat(64);
const register = (id: string, digit: string, change: object = {}) =>
  agent.client.registerImage({
    ...{ id, version: version(digit), recipe: `recipe ${digit}`, index_sha256: version('0') },
    ...{ size_bytes: GIB, stored_bytes: 1_000, newest: true },
    ...change,
  });
const listed = async (id: string) => {
  const { body } = await client.get<{ data: { id: string; current: string | null; versions: string[] }[] }>(
    '/v1/images',
  );
  return body.data.find((each) => each.id === id);
};
const verdict = async (id: string, digit: string, recipe: string, needed = false) => {
  const { verdicts } = await agent.client.offerImages({
    images: [{ id, version: version(digit), recipe, needed }],
  });
  return verdicts[0];
};
const remove = (id: string, prefix: string | null) => transaction(db, (tx) => removeImage(tx, id, prefix));
const baseOf = async (id: InstanceId) =>
  (
    await db
      .selectFrom('disks')
      .select('image_version')
      .where('instance_id', '=', id)
      .executeTakeFirstOrThrow()
  ).image_version;

describe('versions of an image', () => {
  test('the first version is current until one of a newer recipe; a rebuild or a reappearing version does not change it', async () => {
    assert.equal(await verdict('builds', '1', 'recipe 1'), 'wanted');
    await register('builds', '1');
    assert.equal((await listed('builds'))?.current, version('1'));
    assert.equal(await verdict('builds', '1', 'recipe 1'), 'stored');
    assert.equal(await verdict('builds', '2', 'recipe 1'), 'unneeded');
    assert.equal(await verdict('builds', '2', 'recipe 1', true), 'wanted');
    await register('builds', '2', { recipe: 'recipe 1' });
    assert.equal((await listed('builds'))?.current, version('1'));
    await register('builds', '3');
    await register('builds', '1');
    await register('builds', '4', { newest: false });
    assert.deepEqual(await listed('builds'), {
      ...{ id: 'builds', current: version('3'), size_bytes: GIB },
      versions: ['1', '2', '3', '4'].map(version),
    });
    assert.equal((await agent.client.findImage({ id: 'builds', version: null }))?.version, version('3'));
    assert.equal(
      (await agent.client.findImage({ id: 'builds', version: version('1') }))?.index_sha256,
      version('0'),
    );
    assert.equal(await agent.client.findImage({ id: 'builds', version: version('9') }), null);
  });

  test('versions are listed page by page, each once', async () => {
    for (const id of ['page-b', 'page-a']) await register(id, '9');
    interface Page {
      readonly data: { id: string }[];
      readonly next_cursor: string | null;
    }
    const all = (await client.get<Page>('/v1/images')).body.data.map(({ id }) => id);
    const seen: string[] = [];
    for (let cursor: string | null = ''; cursor !== null; ) {
      const more: string = cursor === '' ? '' : `&cursor=${cursor}`;
      const { body }: { body: Page } = await client.get<Page>(`/v1/images?limit=1${more}`);
      seen.push(...body.data.map(({ id }) => id));
      cursor = body.next_cursor;
    }
    assert.deepEqual(seen, all);
    for (const limit of ['0', '201'])
      assertError(await client.get(`/v1/images?limit=${limit}`), 'INVALID_REQUEST');
  });

  test('a disk is bound to the current version at its first start, for good', async () => {
    await register('stays', '5');
    const { id } = await api.instance(owner, { image: 'stays' });
    assert.equal(await baseOf(id), null);
    assert.equal((await client.post(`/v1/instances/${id}/vm`)).status, 202);
    assert.equal(await baseOf(id), version('5'));
    assert.equal((await agent.client.head(id))?.image_version, version('5'));
    await register('stays', '6');
    assert.equal(await baseOf(id), version('5'));
  });

  test('a disk is at least as large as its image', async () => {
    await register('large', '7', { size_bytes: 2.5 * GIB });
    const body = { name: newName(), image: 'large', disk_gib: 2 };
    const refused = await client.post('/v1/instances', body);
    assertError(refused, 'INVALID_REQUEST');
    assert.match(refused.text, /needs at least 3/);
    assert.equal((await client.post('/v1/instances', { ...body, disk_gib: 3 })).status, 201);
    // It has grown since the instance was made.
    const { id } = await api.instance(owner, { image: 'large', disk_gib: 3 });
    await register('large', '8', { size_bytes: 4 * GIB });
    assertError(await client.post(`/v1/instances/${id}/vm`), 'CONFLICT');
  });
});

describe('removing an image', () => {
  test('409 for the current version, a version of a disk, and an image of instances; else it is removed for good', async () => {
    await register('old', 'a');
    const { id } = await api.instance(owner, { name: 'needs-a', image: 'old' });
    await client.post(`/v1/instances/${id}/vm`);
    await register('old', 'b');
    await register('old', 'c');
    await assert.rejects(remove('old', 'a'), { code: 'CONFLICT', message: /disks are based on it: needs-a/ });
    await assert.rejects(remove('old', 'c'), { code: 'CONFLICT', message: /current version for new disks/ });
    await assert.rejects(remove('old', null), { code: 'CONFLICT', message: /instances use it: needs-a/ });
    await assert.rejects(remove('old', 'd'), { code: 'NOT_FOUND' });
    await assert.rejects(remove('nothing', null), { code: 'NOT_FOUND' });
    assert.deepEqual(await remove('old', 'bb'), [version('b')]);
    assert.deepEqual((await listed('old'))?.versions, [version('a'), version('c')]);
    assert.equal(await verdict('old', 'b', 'recipe b'), 'removed');
    await register('old', 'b');
    assert.deepEqual((await listed('old'))?.versions, [version('a'), version('c')]);
    await register('whole', 'e');
    assert.deepEqual(await remove('whole', null), [version('e')]);
    assert.equal(await listed('whole'), undefined);
    assertError(await client.post('/v1/instances', { name: newName(), image: 'whole' }), 'INVALID_REQUEST');
  });

  test('409 while a disk has an unknown version', async () => {
    await instanceIn(api, owner, 'running');
    await register('debian-12', 'd');
    await register('debian-12', 'f');
    await assert.rejects(remove('debian-12', 'd'), { code: 'CONFLICT', message: /disks are based on it/ });
    await assert.rejects(remove('debian-12', null), { code: 'CONFLICT' });
  });
});
