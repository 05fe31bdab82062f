/**
 * The web console as browsers get it: `console/dist`, made by esbuild from `console/src` and the generated client.
 *
 * - Every file but index.html is named by its content, so browsers may keep it for ever.
 * - Beside each file stand its compressed forms; the server only chooses.
 * - `stamp` holds the hash of all that goes in, and is written into a new folder that takes the old one's place whole:
 *   nothing is built twice, and an interrupted build is no build.
 */
import { createHash } from 'node:crypto';
import {
  chmodSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { basename, join, relative } from 'node:path';
import { promisify } from 'node:util';
import { brotliCompress, constants, gzip } from 'node:zlib';

const HERE = import.meta.dirname;
const PROJECT = join(HERE, '..');
const OUT = join(HERE, 'dist');
const SOURCES = ['console/src', 'client/src', 'console/index.html', 'console/icon.svg', 'console/build.ts'];
/** What the console is built with and of. */
const LOCK = 'package-lock.json';
/** The engines that the documents promise. */
const TARGET = ['chrome123', 'firefox121', 'safari17.5'];

function inputs(): string[] {
  const files = SOURCES.flatMap((path) =>
    path.endsWith('/src')
      ? readdirSync(join(PROJECT, path), { recursive: true, withFileTypes: true })
          .filter((entry) => entry.isFile())
          .map((entry) => join(entry.parentPath, entry.name))
      : [join(PROJECT, path)],
  );
  return [...files, join(PROJECT, LOCK)].sort();
}

function wantedStamp(): string {
  const hash = createHash('sha256');
  for (const path of inputs()) {
    hash
      .update(`${relative(PROJECT, path)}\0`)
      .update(readFileSync(path))
      .update('\0');
  }
  return hash.digest('hex');
}

function isBuilt(stamp: string): boolean {
  const path = join(OUT, 'stamp');
  return existsSync(path) && readFileSync(path, 'utf8') === stamp;
}

/** index.html with the names that the build has given. */
function page(outputs: readonly string[]): string {
  const named = (pattern: RegExp) => {
    const found = outputs.map((path) => basename(path)).find((name) => pattern.test(name));
    if (found === undefined) throw new Error(`the build has made nothing like ${pattern}`);
    return `/assets/${found}`;
  };
  return readFileSync(join(HERE, 'index.html'), 'utf8')
    .replace('{{js}}', named(/^main-\w+\.js$/))
    .replace('{{css}}', named(/^main-\w+\.css$/))
    .replace('{{icon}}', named(/^icon-\w+\.svg$/));
}

async function compress(folder: string): Promise<void> {
  const entries = readdirSync(folder, { recursive: true, withFileTypes: true });
  await Promise.all(
    entries
      .filter((entry) => entry.isFile() && entry.name !== 'stamp')
      .map(async (entry) => {
        const path = join(entry.parentPath, entry.name);
        const bytes = readFileSync(path);
        const quality = { params: { [constants.BROTLI_PARAM_QUALITY]: 9 } };
        writeFileSync(`${path}.br`, await promisify(brotliCompress)(bytes, quality));
        writeFileSync(`${path}.gz`, await promisify(gzip)(bytes, { level: 9 }));
      }),
  );
}

async function build(stamp: string): Promise<void> {
  // Loaded only when there is something to build: a package of this project has the built files and no esbuild.
  const esbuild = await import('esbuild');
  const folder = mkdtempSync(join(HERE, 'dist.new-'));
  // As a checkout makes folders; mkdtemp lets nobody else in.
  chmodSync(folder, 0o755);
  try {
    const { metafile } = await esbuild.build({
      absWorkingDir: PROJECT,
      entryPoints: [
        { in: 'console/src/main.tsx', out: 'main' },
        // The script and style of /docs.
        { in: 'console/src/reference/reference.ts', out: 'reference' },
        { in: 'console/icon.svg', out: 'icon' },
      ],
      outdir: join(folder, 'assets'),
      entryNames: '[name]-[hash]',
      chunkNames: '[name]-[hash]',
      assetNames: '[name]-[hash]',
      bundle: true,
      format: 'esm',
      splitting: true,
      minify: true,
      target: TARGET,
      jsx: 'automatic',
      jsxImportSource: 'preact',
      loader: { '.svg': 'copy' },
      metafile: true,
      legalComments: 'none',
      logLevel: 'warning',
    });
    writeFileSync(join(folder, 'index.html'), page(Object.keys(metafile.outputs)));
    await compress(folder);
    writeFileSync(join(folder, 'stamp'), stamp);
    rmSync(OUT, { recursive: true, force: true });
    try {
      renameSync(folder, OUT);
    } catch (error) {
      // Another one was quicker, with the same result.
      if (!isBuilt(stamp)) throw error;
    }
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

const stamp = wantedStamp();
if (!isBuilt(stamp)) {
  const began = performance.now();
  await build(stamp);
  process.stdout.write(`berth: built the console (${((performance.now() - began) / 1000).toFixed(1)} s)\n`);
}
