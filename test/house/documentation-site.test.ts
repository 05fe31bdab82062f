/** The documentation site has every document, at an address of its own, in a sidebar that leads to it. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { addressesOf, readCopies, readPages } from '../../site/pages.ts';
import { missingIn, SIDEBAR, sidebarOf } from '../../site/sidebar.ts';

const pages = readPages();

test('every page is in the sidebar, or in the list of its folder', () => {
  assert.ok(pages.length > 80);
  assert.deepEqual(
    missingIn(pages).map(({ file }) => file),
    [],
    'name them in site/sidebar.ts',
  );
});

test('every entry of the sidebar has a page', () => {
  const files = new Set(pages.map(({ file }) => file));
  const targets = SIDEBAR.flatMap(({ entries }) => entries.map(([, target]) => target.split('#')[0] ?? ''));
  assert.deepEqual(
    targets.filter((target) => !files.has(target) && target !== '/docs/api'),
    [],
  );
  assert.deepEqual(targets.toSorted(), [...new Set(targets)].toSorted(), 'an entry twice');
});

test('a page that the sidebar does not name yet is shown at its end', () => {
  const fresh = { file: 'docs/fresh.md', address: '/docs/fresh', title: 'Fresh', text: '# Fresh\n' };
  assert.deepEqual(missingIn([...pages, fresh]), [fresh]);
  assert.deepEqual(sidebarOf([...pages, fresh]).at(-1), {
    title: 'More',
    entries: [['Fresh', 'docs/fresh.md']],
  });
});

test('no two documents have one address, and none has that of the API reference', () => {
  const copies = readCopies(pages);
  const addresses = [...pages, ...copies].map(({ address }) => address);
  assert.deepEqual(addresses.length, new Set(addresses).size);
  assert.ok(!addresses.includes('/docs/api'));
  assert.equal(addressesOf(pages, copies).get('docs/cli.md'), '/docs/cli');
});
