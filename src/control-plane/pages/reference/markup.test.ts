import assert from 'node:assert/strict';
import { test } from 'node:test';
import { html, inline, joined, prose } from './markup.ts';

test('every text is escaped, in content and in attributes, and markup is not escaped again', () => {
  const hostile = `<script>"&'`;
  const inner = html`<b title="${hostile}">${hostile}</b>`;
  const escaped = '&lt;script&gt;&quot;&amp;&#39;';
  assert.equal(html`<p>${[inner, null, 1]}</p>`.text, `<p><b title="${escaped}">${escaped}</b>1</p>`);
});

test('a description may have paragraphs, code and bold text, and nothing else', () => {
  const text = 'Waits for `?wait=<state>`.\n\n**Access**: *any* [link](x) ** `';
  assert.equal(
    html`${prose(text)}`.text,
    '<p>Waits for <code>?wait=&lt;state&gt;</code>.</p><p><strong>Access</strong>: *any* [link](x) ** `</p>',
  );
  assert.equal(html`${joined(['a', inline('`b`')], ', ')}`.text, 'a, <code>b</code>');
});
