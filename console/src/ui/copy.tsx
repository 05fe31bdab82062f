/** Text with a button that copies it. */
import { useEffect, useState } from 'preact/hooks';
import { Icon } from './icon.tsx';

const TOLD_MS = 2_000;

export function CopyButton({ text, label }: { readonly text: string; readonly label: string }) {
  const [told, setTold] = useState<'copied' | 'failed' | null>(null);
  useEffect(() => {
    if (told === null) return undefined;
    const timer = setTimeout(() => setTold(null), TOLD_MS);
    return () => clearTimeout(timer);
  }, [told]);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setTold('copied');
    } catch {
      setTold('failed');
    }
  };
  return (
    <button
      type="button"
      class="button plain small copy-button"
      onClick={copy}
      // The outcome is the name while it is shown.
      aria-label={told === null ? label : undefined}
    >
      <Icon name={told === 'copied' ? 'check' : 'copy'} />
      <span aria-live="polite">
        {told === 'copied' ? 'Copied' : told === 'failed' ? 'Select it' : 'Copy'}
      </span>
    </button>
  );
}

export function Copyable({ text, label }: { readonly text: string; readonly label: string }) {
  return (
    <div class="copyable">
      <code>{text}</code>
      <CopyButton text={text} label={label} />
    </div>
  );
}
