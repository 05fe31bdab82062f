/**
 * Assigns each document of the project its address on the documentation site. Every document below docs/ and examples/
 * is a page, and so are the documents elsewhere that are listed here. The site has a copy of any other file that a page
 * links to.
 */
import { createHash } from 'node:crypto';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { basename, dirname, extname, join } from 'node:path';
import { filesIn, PROJECT } from '../bin/build-folder.ts';

const PREFIX = '/docs';
const START = 'docs/README.md';
const BESIDE_THE_CODE = ['bench/README.md', 'guest/README.md'];

export interface Page {
  /** From the project's folder, as are all names of files here. */
  readonly file: string;
  readonly address: string;
  readonly title: string;
  readonly text: string;
}

export interface Copy {
  readonly file: string;
  readonly address: string;
}

export function readPages(): Page[] {
  const at_the_top = readdirSync(PROJECT).filter((name) => name.endsWith('.md') && name !== 'README.md');
  const beside = BESIDE_THE_CODE.filter((file) => existsSync(join(PROJECT, file)));
  const below = ['docs', 'examples'].flatMap(filesIn).filter((file) => file.endsWith('.md'));
  return [...below, ...at_the_top, ...beside].sort().map((file) => {
    const text = readFileSync(join(PROJECT, file), 'utf8');
    return { file, address: addressOf(file), title: /^# (.+)$/m.exec(text)?.[1] ?? file, text };
  });
}

/** `docs/adr/README.md` is at `/docs/adr`, `docs/cli.md` at `/docs/cli`, `SECURITY.md` at `/docs/security`. */
function addressOf(file: string): string {
  if (file === START) return PREFIX;
  return `${PREFIX}/${file.replace(/^docs\//, '').replace(/(\/README)?\.md$/, '')}`.toLowerCase();
}

const LINK = /\]\((?!https?:|mailto:|#)([^)\s#]+)/g;

/** The files that the pages link to or show, and that are no pages. */
export function readCopies(pages: readonly Page[]): Copy[] {
  const others = new Set(['README.md', ...pages.map(({ file }) => file)]);
  const linked = pages.flatMap(({ file, text }) =>
    [...text.matchAll(LINK)].map(([, link = '']) => join(dirname(file), link)),
  );
  return [...new Set(linked)]
    .filter((file) => !others.has(file) && extname(file) !== '' && existsSync(join(PROJECT, file)))
    .map((file) => ({ file, address: copyAddressOf(file) }));
}

/** Images are named by their content, so browsers may keep them for ever. */
function copyAddressOf(file: string): string {
  if (!file.startsWith('docs/images/')) return `${PREFIX}/source/${file}`;
  const hash = createHash('sha256')
    .update(readFileSync(join(PROJECT, file)))
    .digest('hex');
  const ending = extname(file);
  return `${PREFIX}/assets/${basename(file, ending)}-${hash.slice(0, 8)}${ending}`;
}

/** Addresses by file. The project's README.md is the start page. */
export function addressesOf(pages: readonly Page[], copies: readonly Copy[]): ReadonlyMap<string, string> {
  return new Map(
    [...pages, ...copies, { file: 'README.md', address: PREFIX }].map((each) => [each.file, each.address]),
  );
}
