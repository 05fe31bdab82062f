/** Choices kept in this browser: theme, organisation, hidden notices, columns of the list of instances. Never a token. */

const PREFIX = 'berth.';

type Choice = 'theme' | 'org' | 'mail-notice' | 'columns';

export function readChoice(name: Choice): string | null {
  try {
    return localStorage.getItem(PREFIX + name);
  } catch {
    // Storage may be forbidden; then the choice lasts as long as the page.
    return null;
  }
}

export function writeChoice(name: Choice, value: string | null): void {
  try {
    if (value === null) localStorage.removeItem(PREFIX + name);
    else localStorage.setItem(PREFIX + name, value);
  } catch {
    // As above.
  }
}
