/** Choices kept in this browser: the theme, the organisation. Never a token. */

const PREFIX = 'berth.';

export function readChoice(name: 'theme' | 'org'): string | null {
  try {
    return localStorage.getItem(PREFIX + name);
  } catch {
    // Storage may be forbidden; then the choice lasts as long as the page.
    return null;
  }
}

export function writeChoice(name: 'theme' | 'org', value: string | null): void {
  try {
    if (value === null) localStorage.removeItem(PREFIX + name);
    else localStorage.setItem(PREFIX + name, value);
  } catch {
    // As above.
  }
}
