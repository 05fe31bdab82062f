import assert from 'node:assert/strict';
import type { Answer } from './client.ts';

export interface SetCookie {
  /** As a Cookie header. */
  readonly header: string;
  readonly name: string;
  readonly value: string;
  /** As they were sent, sorted. */
  readonly attributes: readonly string[];
}

/** Reads the only cookie that a response sets. */
export function setCookieOf(answer: Answer<unknown>): SetCookie {
  const given = answer.headers['set-cookie'];
  const all = Array.isArray(given) ? given : given === undefined ? [] : [given];
  assert.equal(all.length, 1, `one cookie: ${JSON.stringify(all)}`);
  const [pair = '', ...attributes] = (all[0] ?? '').split(';').map((part) => part.trim());
  const [name = '', value = ''] = pair.split('=');
  return { header: pair, name, value, attributes: attributes.sort() };
}
