/**
 * Makes the files of the documentation site: pages by Eleventy, script and style by esbuild, the index of the search,
 * and copies of files that pages link to.
 */
import { createHash } from 'node:crypto';
import { cpSync, mkdirSync, writeFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import * as esbuild from 'esbuild';
import { BROWSERS, PROJECT } from '../bin/build-folder.ts';
import { type Env, markdownFor, type Section, sectionsOf } from './markdown.ts';
import { addressesOf, type Page, readCopies, readPages } from './pages.ts';
import { searchIndex } from './search-index.ts';
import { sidebarOf } from './sidebar.ts';

const ICON = 'console/icon.svg';
const NO_PAGE = `# There is no such page

Search for it, or begin at the [start](docs/README.md).
`;

interface Assets {
  readonly script: string;
  readonly style: string;
  readonly icon: string;
  readonly index: string;
}

const pages = readPages();
const copies = readCopies(pages);
const addresses = addressesOf(pages, copies);
const markdown = markdownFor(addresses);

/** Where the page of an address is stored below `site/dist`. */
const fileOf = (address: string) => `${address.replace(/^\/docs\/?/, '') || 'index'}.html`;
const inDist = (folder: string, address: string) => join(folder, address.slice('/docs/'.length));

export async function makeSite(folder: string): Promise<void> {
  for (const { file, address } of copies) {
    mkdirSync(dirname(inDist(folder, address)), { recursive: true });
    cpSync(join(PROJECT, file), inDist(folder, address));
  }
  const read = pages.map((page) => ({ page, sections: sectionsIn(page) }));
  const index = JSON.stringify(searchIndex(read));
  const hash = createHash('sha256').update(index).digest('hex').slice(0, 8);
  const assets = { ...(await makeAssets(folder)), index: `/docs/assets/index-${hash}.json` };
  writeFileSync(inDist(folder, assets.index), index);
  await writePages(folder, assets, read);
}

function sectionsIn({ file, text }: Page): Section[] {
  return sectionsOf(markdown.parse(text, { file } satisfies Env));
}

async function makeAssets(folder: string): Promise<Omit<Assets, 'index'>> {
  const { metafile } = await esbuild.build({
    absWorkingDir: PROJECT,
    entryPoints: [
      { in: 'site/src/site.ts', out: 'site' },
      { in: ICON, out: 'icon' },
    ],
    outdir: join(folder, 'assets'),
    entryNames: '[name]-[hash]',
    assetNames: '[name]-[hash]',
    bundle: true,
    format: 'esm',
    minify: true,
    target: BROWSERS,
    loader: { '.svg': 'copy' },
    metafile: true,
    legalComments: 'none',
    logLevel: 'warning',
  });
  const names = Object.keys(metafile.outputs).map((path) => basename(path));
  const named = (ending: string) => `/docs/assets/${names.find((name) => name.endsWith(ending))}`;
  return { script: named('.js'), style: named('.css'), icon: named('.svg') };
}

/** It brings no types; this is what we use of it. */
const ELEVENTY: string = '@11ty/eleventy';

interface Settings {
  setIncludesDirectory(folder: string): void;
  setTemplateFormats(formats: readonly string[]): void;
  setLibrary(format: string, library: object): void;
  addTemplate(path: string, text: string, data: object): void;
}

interface Generator {
  readonly Eleventy: new (
    input: string,
    output: string,
    options: { config: (settings: Settings) => void },
  ) => { disableLogger(): void; write(): Promise<void> };
}

interface Link {
  readonly words: string;
  readonly address: string;
}

function sidebarLinks(): { title: string; entries: Link[] }[] {
  return sidebarOf(pages).map(({ title, entries }) => ({
    title,
    entries: entries.flatMap(([words, target]) => {
      const [file = '', anchor] = target.split('#');
      const address = target.startsWith('/') ? target : addresses.get(file);
      // A page may be named before it is written.
      if (address === undefined) return [];
      return [{ words, address: anchor === undefined ? address : `${address}#${anchor}` }];
    }),
  }));
}

async function writePages(
  folder: string,
  assets: Assets,
  read: readonly { page: Page; sections: readonly Section[] }[],
): Promise<void> {
  const { Eleventy } = (await import(ELEVENTY)) as Generator;
  const sidebar = sidebarLinks();
  const order = sidebar.flatMap(({ entries }) => entries);
  // The documents are Markdown alone, whatever braces they have.
  const common = { layout: 'page.liquid', templateEngineOverride: 'md', assets, sidebar };
  process.chdir(PROJECT);
  const eleventy = new Eleventy('site', folder, {
    config: (settings) => {
      settings.setIncludesDirectory('theme');
      settings.setTemplateFormats(['md']);
      settings.setLibrary('md', markdown);
      for (const { page, sections } of read) {
        const at = order.findIndex(({ address }) => address === page.address);
        settings.addTemplate(`${page.file.replaceAll('/', ':')}`, page.text, {
          ...common,
          ...{ title: page.title, file: page.file, address: page.address, permalink: fileOf(page.address) },
          headings: sections.filter(({ level }) => level === 2),
          ...(at < 0 ? {} : { previous: order[at - 1], next: order[at + 1] }),
        });
      }
      const missing = { title: 'There is no such page', file: 'README.md', permalink: '404.html' };
      settings.addTemplate('404.md', NO_PAGE, { ...common, ...missing });
    },
  });
  eleventy.disableLogger();
  await eleventy.write();
}
