/**
 * The command palette, its keyboard shortcut, and the buttons that open it. It is a combobox with a list box (WAI-ARIA
 * Authoring Practices) in a modal dialog.
 */
import { signal } from '@preact/signals';
import { useEffect, useId, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { plural } from '../format.ts';
import { openModal } from '../ui/dialog.tsx';
import { Icon } from '../ui/icon.tsx';
import { type Command, commandsFor } from './commands.ts';
import { findCommands } from './match.ts';

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

/** Listens for the shortcut, and shows the palette while it is open. */
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

const MOST_SHOWN = 50;

interface Props {
  readonly onClose: () => void;
}

function Palette({ onClose }: Props) {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  const [typed, setTyped] = useState('');
  const [chosen, setChosen] = useState(0);
  const found = findCommands(commandsFor(typed), typed, MOST_SHOWN);
  // The list may have become shorter since.
  const current = Math.min(chosen, found.length - 1);
  // Before the next key, which already belongs to it.
  useLayoutEffect(() => (dialog.current ? openModal(dialog.current) : undefined), []);
  useEffect(() => {
    dialog.current?.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: 'nearest' });
  }, [current, typed]);

  const run = (command: Command | undefined) => {
    if (!command) return;
    // First, so that a page that opens gets the focus.
    onClose();
    command.run();
  };
  const move = (event: KeyboardEvent, to: number) => {
    event.preventDefault();
    if (found.length > 0) setChosen((to + found.length) % found.length);
  };
  const press = (event: KeyboardEvent) => {
    if (event.isComposing) return;
    if (event.key === 'ArrowDown') move(event, current + 1);
    if (event.key === 'ArrowUp') move(event, current - 1);
    if (event.key === 'Enter') {
      event.preventDefault();
      run(found[current]);
    }
  };
  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: Escape is the key for it
    <dialog
      ref={dialog}
      class="dialog palette"
      aria-labelledby={`${id}-title`}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      // A click beside it: the backdrop belongs to the dialog itself.
      onClick={(event) => event.target === event.currentTarget && onClose()}
    >
      <div class="palette-head">
        <h2 class="hidden" id={`${id}-title`}>
          Go to or do
        </h2>
        <Icon name="search" />
        <input
          type="text"
          role="combobox"
          aria-label="Page, instance or action"
          aria-expanded="true"
          aria-controls={`${id}-list`}
          aria-autocomplete="list"
          aria-activedescendant={found[current] && `${id}-${found[current].id}`}
          placeholder="Page, instance or action"
          autocomplete="off"
          spellcheck={false}
          maxLength={100}
          autofocus
          value={typed}
          onInput={(event) => {
            setTyped(event.currentTarget.value);
            setChosen(0);
          }}
          onKeyDown={press}
        />
        <button type="button" class="icon-button" aria-label="Close" onClick={onClose}>
          <Icon name="close" />
        </button>
      </div>
      <p class="hidden" role="status">
        {plural(found.length, 'result')}
      </p>
      <div class="palette-list" role="listbox" id={`${id}-list`} aria-label="Commands">
        {found.map((command, nth) => (
          <Option
            key={command.id}
            id={`${id}-${command.id}`}
            command={command}
            is_chosen={nth === current}
            onPointed={() => setChosen(nth)}
            onRun={() => run(command)}
          />
        ))}
      </div>
      {found.length === 0 && (
        <p class="palette-none">Nothing fits. Type the name of a page, an instance or an action.</p>
      )}
    </dialog>
  );
}

interface OptionProps {
  readonly id: string;
  readonly command: Command;
  readonly is_chosen: boolean;
  readonly onPointed: () => void;
  readonly onRun: () => void;
}

/** The focus stays in the input; the keyboard chooses there. */
function Option({ id, command, is_chosen, onPointed, onRun }: OptionProps) {
  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: the combobox takes the keys
    <div
      role="option"
      tabIndex={-1}
      id={id}
      aria-selected={is_chosen}
      onPointerMove={onPointed}
      onClick={onRun}
    >
      <Icon name={command.icon} />
      <span class="palette-name">{command.name}</span>
      <span class="palette-note">{command.note}</span>
    </div>
  );
}
