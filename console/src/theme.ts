/** The theme: light, dark, or the system's. Stored in this browser, because it belongs to the screen and not to the account. */
import { signal } from '@preact/signals';
import { readChoice, writeChoice } from './choices.ts';

export const THEMES = ['system', 'light', 'dark'] as const;
export type Theme = (typeof THEMES)[number];

export const THEME_NAMES: Record<Theme, string> = { system: 'as the system', light: 'light', dark: 'dark' };

const kept = readChoice('theme');
export const theme = signal<Theme>(THEMES.find((each) => each === kept) ?? 'system');

export function applyTheme(): void {
  document.documentElement.dataset['theme'] = theme.value;
}

export function setTheme(next: Theme): void {
  theme.value = next;
  writeChoice('theme', next);
  applyTheme();
}
