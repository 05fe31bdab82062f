/** Scopes of keys, in words: `*` is all permissions. */
import type { Cell } from './table.ts';

/** `all permissions`, `instances:read vm:write` */
export const scopeWords = (scope: string) => (scope === '*' ? 'all permissions' : scope);

/** More than these are counted. */
const MOST_SHOWN = 4;

export function scopeCell(scope: string): Cell {
  const count = scope.split(' ').length;
  return { text: count > MOST_SHOWN ? `${count} permissions` : scopeWords(scope), value: scope };
}
