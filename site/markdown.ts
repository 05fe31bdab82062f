/**
 * Renders Markdown as the site shows it:
 *
 * - Headings have the anchors that a git host gives them.
 * - Links between documents become addresses of the site.
 * - Code has a button that copies it, and a wide table scrolls by itself.
 */
import { dirname, join } from 'node:path';
import MarkdownIt, { type Token } from 'markdown-it';
import { anchorOf } from './anchor.ts';

const REFERENCE = '/docs/api';

export interface Env {
  /** The document. */
  readonly file: string;
}

export function markdownFor(addresses: ReadonlyMap<string, string>): MarkdownIt {
  const md = new MarkdownIt({ html: true });
  md.core.ruler.push('anchors', ({ tokens }) => giveAnchors(tokens));
  md.core.ruler.push('corners', ({ tokens }) => emptyCorners(tokens));
  md.core.ruler.push('links', ({ tokens, env }) => {
    for (const { children } of tokens)
      for (const token of children ?? []) rewrite(token, (env as Env).file, addresses);
  });
  const { escapeHtml } = md.utils;
  md.renderer.rules['fence'] = (tokens, at) => {
    const { content = '', info = '' } = tokens[at] ?? {};
    const language = info.trim() === '' ? '' : ` class="language-${escapeHtml(info.trim())}"`;
    return `<div class="code"><pre><code${language}>${escapeHtml(content)}</code></pre><button type="button" class="copy" hidden aria-label="Copy this code">Copy</button></div>\n`;
  };
  // Plain Markdown cannot lead to a page that the server makes.
  md.renderer.rules['code_inline'] = (tokens, at) => {
    const content = tokens[at]?.content ?? '';
    const code = `<code>${escapeHtml(content)}</code>`;
    return content === REFERENCE ? `<a href="${REFERENCE}">${code}</a>` : code;
  };
  // Focusable, so that the keyboard can scroll it.
  md.renderer.rules['table_open'] = () =>
    '<div class="table" role="group" aria-label="Table" tabindex="0"><table>\n';
  md.renderer.rules['table_close'] = () => '</table></div>\n';
  return md;
}

/** A second heading of the same words gets `-1`, as on a git host. */
function giveAnchors(tokens: readonly Token[]): void {
  const uses = new Map<string, number>();
  for (const [at, token] of tokens.entries()) {
    if (token.type !== 'heading_open') continue;
    const anchor = anchorOf(wordsOf(tokens[at + 1]));
    const before = uses.get(anchor) ?? 0;
    uses.set(anchor, before + 1);
    token.attrSet('id', before === 0 ? anchor : `${anchor}-${before}`);
  }
}

/** An empty cell of a table's head heads nothing. */
function emptyCorners(tokens: readonly Token[]): void {
  for (const [at, token] of tokens.entries()) {
    const close = tokens[at + 2];
    if (token.type !== 'th_open' || tokens[at + 1]?.content !== '' || !close) continue;
    token.tag = 'td';
    close.tag = 'td';
  }
}

function rewrite(token: Token, file: string, addresses: ReadonlyMap<string, string>): void {
  const attribute = token.type === 'link_open' ? 'href' : token.type === 'image' ? 'src' : null;
  const link = attribute && token.attrGet(attribute);
  if (!link || link.startsWith('#')) return;
  if (/^[a-z]+:/.test(link)) {
    token.attrSet('rel', 'noreferrer');
    return;
  }
  const [path = '', anchor] = link.split('#');
  const address = addresses.get(join(dirname(file), path));
  if (address !== undefined)
    token.attrSet(attribute, anchor === undefined ? address : `${address}#${anchor}`);
}

/** What a reader sees of it. */
function wordsOf(token: Token | undefined): string {
  return (token?.children ?? [])
    .map(({ type, content }) => (type === 'softbreak' ? ' ' : type === 'image' ? '' : content))
    .join('');
}

export interface Section {
  readonly level: number;
  readonly anchor: string;
  readonly title: string;
  readonly text: string;
}

/** A page by its headings; text before the first one belongs to it. */
export function sectionsOf(tokens: readonly Token[]): Section[] {
  const sections: { level: number; anchor: string; title: string; text: string[] }[] = [];
  for (const [at, token] of tokens.entries()) {
    if (token.type === 'heading_open') {
      const level = Number(token.tag.slice(1));
      sections.push({ level, anchor: String(token.attrGet('id')), title: wordsOf(tokens[at + 1]), text: [] });
    } else if (tokens[at - 1]?.type !== 'heading_open') {
      const words = token.type === 'inline' ? wordsOf(token) : token.type === 'fence' ? token.content : '';
      if (words !== '') sections.at(-1)?.text.push(words);
    }
  }
  return sections.map((each) => ({ ...each, text: each.text.join(' ').replaceAll(/\s+/g, ' ') }));
}
