/**
 * Shows, in a collapsible part of a form, the `berth` command and the curl command that do the same as the form, each
 * with a copy button. It reads the form's fields when it is opened, and again at each change while it is open. The
 * commands themselves are built in as-commands.ts.
 */
import { useEffect, useRef, useState } from 'preact/hooks';
import { CopyButton } from '../ui/button.tsx';
import type { Commands } from './as-commands.ts';

interface Props {
  /** Null: there is nothing to do. @throws Error for a person to read */
  readonly of: (form: FormData) => Commands | null;
}

type Read = { readonly commands: Commands | null } | { readonly problem: string };

export function CommandView({ of }: Props) {
  const element = useRef<HTMLDetailsElement>(null);
  const latest = useRef(of);
  latest.current = of;
  const [read, setRead] = useState<Read | null>(null);
  useEffect(() => {
    const form = element.current?.closest('form');
    if (!form) return undefined;
    const look = () => {
      if (element.current?.open) setRead(readForm(form, latest.current));
    };
    const events = ['input', 'change', 'reset'] as const;
    // After a reset the fields change first.
    const listener = () => setTimeout(look);
    for (const event of events) form.addEventListener(event, listener);
    element.current?.addEventListener('toggle', look);
    return () => {
      for (const event of events) form.removeEventListener(event, listener);
    };
  }, []);
  return (
    <details ref={element} class="as-commands">
      <summary>Copy as command line or curl</summary>
      {read !== null && <Blocks read={read} />}
    </details>
  );
}

/** The name of a new instance. @throws Error as long as there is none */
export function newName(form: FormData): string {
  const name = String(form.get('name')).trim();
  if (name === '') throw new Error('Give it a name first.');
  return name;
}

function readForm(form: HTMLFormElement, of: Props['of']): Read {
  try {
    return { commands: of(new FormData(form)) };
  } catch (error) {
    return { problem: error instanceof Error ? error.message : String(error) };
  }
}

function Blocks({ read }: { readonly read: Read }) {
  if ('problem' in read) return <p class="hint">{read.problem}</p>;
  if (read.commands === null) return <p class="hint">Nothing is changed yet.</p>;
  const { cli, curl } = read.commands;
  return (
    <div class="dialog-part">
      <Block title="Command line" text={cli} label="Copy the command" />
      <Block title="curl, with an API key in $BERTH_API_KEY" text={curl} label="Copy the curl command" />
    </div>
  );
}

function Block({
  title,
  text,
  label,
}: {
  readonly title: string;
  readonly text: string;
  readonly label: string;
}) {
  return (
    <div>
      <p class="hint">{title}</p>
      <div class="copyable">
        <code>{text}</code>
        <CopyButton text={text} label={label} />
      </div>
    </div>
  );
}
