/**
 * The documentation site as browsers get it: `site/dist`. Each page is a file named for its address; script, style, index and
 * images are named by their content, so browsers may keep them for ever.
 */
import { buildFolder, filesIn } from '../bin/build-folder.ts';
import { readCopies, readPages } from './pages.ts';

const pages = readPages();

await buildFolder({
  folder: 'site/dist',
  name: 'the documentation',
  inputs: [
    ...[...pages, ...readCopies(pages)].map(({ file }) => file),
    ...filesIn('site').filter((file) => !/^site\/dist\b/.test(file)),
    ...filesIn('console/src/styles'),
    ...['console/src/choices.ts', 'console/src/reference/copy.ts', 'console/icon.svg', 'openapi/v1.json'],
  ],
  // Loaded only when there is something to build.
  make: async (folder) => (await import('./make-site.ts')).makeSite(folder),
});
