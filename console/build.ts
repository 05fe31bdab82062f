/**
 * The web console as browsers get it: `console/dist`, made by esbuild from `console/src` and the generated client. Every file
 * but index.html is named by its content, so browsers may keep it for ever.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { BROWSERS, buildFolder, filesIn, PROJECT } from '../bin/build-folder.ts';

/** index.html with the names that the build has given. */
function page(outputs: readonly string[]): string {
  const named = (pattern: RegExp) => {
    const found = outputs.map((path) => basename(path)).find((name) => pattern.test(name));
    if (found === undefined) throw new Error(`the build has made nothing like ${pattern}`);
    return `/assets/${found}`;
  };
  return readFileSync(join(PROJECT, 'console/index.html'), 'utf8')
    .replace('{{js}}', named(/^main-\w+\.js$/))
    .replace('{{css}}', named(/^main-\w+\.css$/))
    .replace('{{icon}}', named(/^icon-\w+\.svg$/));
}

async function make(folder: string): Promise<void> {
  // Loaded only when there is something to build: a package of this project has the built files and no esbuild.
  const esbuild = await import('esbuild');
  const { metafile } = await esbuild.build({
    absWorkingDir: PROJECT,
    entryPoints: [
      { in: 'console/src/main.tsx', out: 'main' },
      // The script and style of /docs/api.
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
    target: BROWSERS,
    jsx: 'automatic',
    jsxImportSource: 'preact',
    loader: { '.svg': 'copy' },
    metafile: true,
    legalComments: 'none',
    logLevel: 'warning',
  });
  writeFileSync(join(folder, 'index.html'), page(Object.keys(metafile.outputs)));
}

await buildFolder({
  folder: 'console/dist',
  name: 'the console',
  inputs: [
    ...filesIn('console/src'),
    ...filesIn('client/src'),
    ...['console/index.html', 'console/icon.svg', 'console/build.ts'],
  ],
  make,
});
