/**
 * Shows the last 256 KiB of the guest's serial console, with the time of each line and a search. On request it follows
 * new output.
 */
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import type { Instance } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { exactly, plural } from '../format.ts';
import { Button } from '../ui/button.tsx';
import { Field } from '../ui/field.tsx';
import { Loaded, Section } from '../ui/page.tsx';
import { useQuery } from '../use-query.ts';
import { type LogLine, linesOf, type Part, partsOf } from './log-lines.ts';

const TAIL_KIB = 256;
const FOLLOW_MS = 2_000;
/** More would make the page slow. */
const MOST_LINES = 2_000;
/** So near to its end the log scrolls on with what is new. */
const AT_END_PX = 24;

export function ConsoleLog({ instance }: { readonly instance: Instance }) {
  const { id, vm } = instance;
  const [follows, setFollows] = useState(false);
  const [with_times, setWithTimes] = useState(true);
  const [sought, setSought] = useState('');
  const log = useQuery(`console log ${id}`, (signal) =>
    call('getConsoleLog', { path: { id }, query: { tail_kib: TAIL_KIB, timestamps: 'true' } }, { signal }),
  );
  const { reload } = log;
  useEffect(() => {
    if (!follows) return;
    let ended = false;
    let timer: ReturnType<typeof setTimeout>;
    const again = async () => {
      if (!document.hidden) await reload();
      if (!ended) timer = setTimeout(again, FOLLOW_MS);
    };
    void again();
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, [follows, reload]);
  return (
    <Section
      title="Console log"
      lead="The newest 256 KiB that the guest printed on its serial console, including earlier boots on the same host."
      actions={
        <>
          <Switch label="Times" checked={with_times} onChange={setWithTimes} />
          <Switch label="Follow" checked={follows} onChange={setFollows} />
          <Button small onClick={() => void reload()}>
            Refresh
          </Button>
        </>
      }
    >
      <Loaded query={log} lines={6}>
        {(text) =>
          text === '' ? (
            <p class="panel dim">
              {vm.boot === 0 ? 'The instance has never run.' : 'The guest has printed nothing yet.'}
            </p>
          ) : (
            <Lines {...{ text, sought, setSought, with_times }} />
          )
        }
      </Loaded>
    </Section>
  );
}

interface LinesProps {
  readonly text: string;
  readonly sought: string;
  readonly setSought: (sought: string) => void;
  readonly with_times: boolean;
}

function Lines({ text, sought, setSought, with_times }: LinesProps) {
  const lines = useMemo(() => linesOf(text), [text]);
  const found = useMemo(
    () =>
      lines.flatMap((line, nth) => {
        const parts = partsOf(line.text, sought);
        return parts ? [{ line, parts, nth }] : [];
      }),
    [lines, sought],
  );
  const box = useRef<HTMLElement>(null);
  const at_end = useRef(true);
  useLayoutEffect(() => {
    if (box.current && at_end.current) box.current.scrollTop = box.current.scrollHeight;
  });
  return (
    <>
      <div class="log-search">
        <Field
          label="Search the log"
          type="search"
          value={sought}
          onInput={(event) => setSought(event.currentTarget.value)}
        />
        <p class="hint" role="status">
          {sought === ''
            ? plural(lines.length, 'line')
            : `${found.length} of ${plural(lines.length, 'line')}`}
        </p>
      </div>
      <section
        ref={box}
        class="log"
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a box that scrolls must be reachable by keyboard
        tabIndex={0}
        aria-label="Console log"
        onScroll={({ currentTarget: { scrollHeight, scrollTop, clientHeight } }) => {
          at_end.current = scrollHeight - scrollTop - clientHeight < AT_END_PX;
        }}
      >
        {found.slice(-MOST_LINES).map(({ line, parts, nth }) => (
          <Line key={nth} {...{ line, parts, with_times }} />
        ))}
      </section>
    </>
  );
}

interface LineProps {
  readonly line: LogLine;
  readonly parts: readonly Part[];
  readonly with_times: boolean;
}

function Line({ line: { time }, parts, with_times }: LineProps) {
  return (
    <div>
      {with_times &&
        (time === null ? (
          <span class="log-time">time unknown</span>
        ) : (
          <time class="log-time" dateTime={time}>
            {exactly(time)}
          </time>
        ))}
      {with_times && ' '}
      {parts.map(({ text, found }, nth) => (found ? <mark key={nth}>{text}</mark> : text))}
      {'\n'}
    </div>
  );
}

interface SwitchProps {
  readonly label: string;
  readonly checked: boolean;
  readonly onChange: (checked: boolean) => void;
}

function Switch({ label, checked, onChange }: SwitchProps) {
  return (
    <label class="switch">
      <input type="checkbox" checked={checked} onChange={(event) => onChange(event.currentTarget.checked)} />
      {label}
    </label>
  );
}
