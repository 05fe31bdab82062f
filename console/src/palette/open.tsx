/** Whether the command palette is open; its key, and the buttons that open it too. */
import { signal } from '@preact/signals';
import { useLayoutEffect } from 'preact/hooks';
import { Icon } from '../ui/icon.tsx';
import { Palette } from './palette.tsx';

const is_open = signal(false);
/** On a Mac, Ctrl+K belongs to text fields. */
const IS_MAC = /Mac|iPhone|iPad/.test(navigator.platform);

function openPalette(): void {
  is_open.value = true;
}

function isPaletteKey({ key, ctrlKey, metaKey, altKey, shiftKey }: KeyboardEvent): boolean {
  return (
    key.toLowerCase() === 'k' && (IS_MAC ? metaKey && !ctrlKey : ctrlKey && !metaKey) && !altKey && !shiftKey
  );
}

/** Not from the terminal, whose shell has a use for the key, and not over a dialog, which waits for its answer. */
function isTaken(target: EventTarget | null): boolean {
  const in_terminal = target instanceof Element && target.closest('.xterm') !== null && !IS_MAC;
  return in_terminal || document.querySelector('dialog[open]') !== null;
}

export function PaletteHost() {
  // Before the next frame: the key works as soon as the page is seen.
  useLayoutEffect(() => {
    const press = (event: KeyboardEvent) => {
      if (!isPaletteKey(event) || isTaken(event.target)) return;
      event.preventDefault();
      openPalette();
    };
    document.addEventListener('keydown', press);
    return () => document.removeEventListener('keydown', press);
  }, []);
  if (!is_open.value) return null;
  return (
    <Palette
      onClose={() => {
        is_open.value = false;
      }}
    />
  );
}

export function PaletteButton() {
  return (
    <button
      type="button"
      class="palette-button"
      aria-keyshortcuts={IS_MAC ? 'Meta+K' : 'Control+K'}
      onClick={openPalette}
    >
      <Icon name="search" />
      Go to or do
      <span class="key" aria-hidden="true">
        {IS_MAC ? '⌘K' : 'Ctrl K'}
      </span>
    </button>
  );
}

export function PaletteIconButton() {
  return (
    <button type="button" class="icon-button" aria-label="Go to or do" onClick={openPalette}>
      <Icon name="search" />
    </button>
  );
}
