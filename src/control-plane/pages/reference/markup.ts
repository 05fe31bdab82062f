/** Markup in which every text is escaped: only `html` makes it. */

export class Markup {
  readonly text: string;
  constructor(text: string) {
    this.text = text;
  }
}

export type Child = Markup | string | number | null | readonly Child[];

const ESCAPES: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
};

function textOf(child: Child): string {
  if (child === null) return '';
  if (child instanceof Markup) return child.text;
  if (typeof child === 'object') return child.map(textOf).join('');
  return String(child).replaceAll(/[&<>"']/g, (character) => ESCAPES[character] ?? '');
}

/** html`<p>${text}</p>`; attributes must be quoted. */
export function html(parts: TemplateStringsArray, ...children: readonly Child[]): Markup {
  return new Markup(parts.map((part, at) => part + textOf(children[at] ?? null)).join(''));
}

/** The children with `between` between them. */
export function joined(children: readonly Child[], between: Child): Child {
  return children.flatMap((child, at) => (at === 0 ? [child] : [between, child]));
}

/** The Markdown that descriptions use: paragraphs, `code` and **bold**. */
export function prose(text: string): Child {
  return text.split('\n\n').map((paragraph) => html`<p>${inline(paragraph)}</p>`);
}

export function inline(text: string): Child {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*)/).map((part) => {
    if (part.startsWith('`') && part.length > 2) return html`<code>${part.slice(1, -1)}</code>`;
    if (part.startsWith('**') && part.length > 4) return html`<strong>${part.slice(2, -2)}</strong>`;
    return part;
  });
}
