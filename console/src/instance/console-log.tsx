/** The tail of the guest's serial console. */
import { useState } from 'preact/hooks';
import type { Instance } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { Button } from '../ui/button.tsx';
import { Failure } from '../ui/failure.tsx';
import { useAction } from '../use-action.ts';

const ESC = '\u001b';
const BELL = '\u0007';
/** Terminal control (ECMA-48, section 5.4; XTerm's commands that a bell ends). */
const SEQUENCE = new RegExp(
  `${ESC}(?:\\[[0-9;?]*[ -/]*[@-~]|\\][^${BELL}${ESC}]*(?:${BELL}|${ESC}\\\\)|[@-Z\\\\-_])`,
  'g',
);
/** Control characters other than line feed and tab. */
const CONTROL = /(?![\n\t])\p{Cc}/gu;

export function ConsoleLog({ instance }: { readonly instance: Instance }) {
  const [text, setText] = useState<string | null>(null);
  const action = useAction(async () => {
    const log = await call('getConsoleLog', { path: { id: instance.id }, query: { tail_kib: 64 } });
    setText(log.replace(SEQUENCE, '').replace(CONTROL, ''));
  });
  return (
    <div class="stack">
      <div>
        <Button small busy={action.busy} onClick={() => void action.run()}>
          {text === null ? 'Show the log' : 'Read the log again'}
        </Button>
      </div>
      <Failure text={action.error} />
      {text !== null && (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a box that scrolls must be reachable by keyboard
        <section class="log" tabIndex={0} aria-label="Console log">
          {text === '' ? 'Nothing was printed yet.' : text}
        </section>
      )}
    </div>
  );
}
