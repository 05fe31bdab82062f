/** Scopes of keys, in words: `*` is all permissions. */
import type { Cell } from './table.ts';

/** `all permissions`, `instances:read vm:write` */
export const scopeWords = (scope: string) => (scope === '*' ? 'all permissions' : scope);

export const scopeCell = (scope: string): Cell => ({ text: scopeWords(scope), value: scope });
