/** Choices kept in this browser: the theme, the organisation, the columns of the list of instances. Never a token. */

type Choice = 'theme' | 'org' | 'columns';

const PREFIX = 'berth.';

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
