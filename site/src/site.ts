/**
 * The script of the documentation's pages: it adds the search and the copy buttons, and takes over the console's theme. Without
 * it a page has all of its text and links.
 */
import '../../console/src/styles/tokens.css';
import '../../console/src/styles/base.css';
import './site.css';
import { readChoice } from '../../console/src/choices.ts';
import { startCopyButtons } from '../../console/src/reference/copy.ts';
import { startSearch } from './search.ts';

document.documentElement.dataset['theme'] = readChoice('theme') ?? 'system';
if (document.readyState === 'loading') document.addEventListener('DOMContentLoaded', start);
else start();

function start(): void {
  startCopyButtons();
  startSearch();
  // Shows the place of this page in a long list.
  document.querySelector('.sidebar [aria-current]')?.scrollIntoView({ block: 'nearest' });
}
