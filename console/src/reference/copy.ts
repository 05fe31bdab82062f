/** Shows the copy buttons of a server-rendered page. Each button copies the code beside it. */

const TOLD_MS = 2_000;

export function startCopyButtons(): void {
  for (const button of document.querySelectorAll<HTMLButtonElement>('button.copy')) {
    button.hidden = false;
    button.addEventListener('click', () => void copy(button));
  }
}

async function copy(button: HTMLButtonElement): Promise<void> {
  const done = await navigator.clipboard.writeText(toCopy(button.parentElement?.querySelector('code'))).then(
    () => 'Copied',
    () => 'Not copied',
  );
  const label = button.getAttribute('aria-label');
  button.textContent = done;
  if (label === null) return;
  // The outcome is the name while it is shown.
  button.removeAttribute('aria-label');
  setTimeout(() => {
    button.textContent = 'Copy';
    button.setAttribute('aria-label', label);
  }, TOLD_MS);
}

/** Of what a terminal shows, the commands without their prompts. */
function toCopy(code: Element | null | undefined): string {
  const text = code?.textContent ?? '';
  const commands = text.split('\n').filter((line) => line.startsWith('$ '));
  if (!code?.classList.contains('language-console') || commands.length === 0) return text;
  return commands.map((line) => `${line.slice(2)}\n`).join('');
}
