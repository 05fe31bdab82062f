/**
 * Toasts: short messages at the page's edge that disappear after some seconds. Screen readers announce each toast once.
 */
import { signal } from '@preact/signals';
import { Icon, type IconName } from './icon.tsx';

type Tone = 'good' | 'bad' | 'news';
interface Toast {
  readonly id: number;
  readonly tone: Tone;
  readonly text: string;
  readonly href?: string;
}

const ICONS: Record<Tone, IconName> = { good: 'check', bad: 'warning', news: 'bell' };
const SHOWN_MS: Record<Tone, number> = { good: 5_000, bad: 12_000, news: 9_000 };
const AT_MOST = 4;
const toasts = signal<readonly Toast[]>([]);
let last_id = 0;

function dismiss(id: number): void {
  toasts.value = toasts.value.filter((each) => each.id !== id);
}

/** The next user must not see what was told to this one. */
export function dismissAll(): void {
  toasts.value = [];
}

export function tell(tone: Tone, text: string, href?: string): void {
  last_id += 1;
  const id = last_id;
  toasts.value = [...toasts.value, { id, tone, text, ...(href === undefined ? {} : { href }) }].slice(
    -AT_MOST,
  );
  setTimeout(() => dismiss(id), SHOWN_MS[tone]);
}

export function Toasts() {
  return (
    <div class="toasts" aria-live="polite" role="status">
      {toasts.value.map(({ id, tone, text, href }) => (
        <div key={id} class={`toast ${tone}`}>
          <Icon name={ICONS[tone]} />
          <span>{href === undefined ? text : <a href={href}>{text}</a>}</span>
          <button type="button" class="icon-button" aria-label="Dismiss" onClick={() => dismiss(id)}>
            <Icon name="close" />
          </button>
        </div>
      ))}
    </div>
  );
}
