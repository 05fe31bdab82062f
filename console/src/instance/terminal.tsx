/**
 * The Terminal tab of an instance: its serial console. The console opens only on request, because the audit log records
 * each opening.
 */
import { useEffect, useRef, useState } from 'preact/hooks';
import type { Instance } from '../../../client/src/berth.ts';
import { call, sayError } from '../api.ts';
import { Button } from '../ui/button.tsx';
import { Failure, Section } from '../ui/page.tsx';
import { whyFixed } from './actions.tsx';
import { ConsoleLog } from './console-log.tsx';

const OPEN_IN = ['starting', 'running', 'restarting', 'stopping'];
const NOT_NOW = 'The console exists while the VM starts, runs or stops.';
/** Why a console closed, by its code (the API's description of createConsoleTicket). */
const CLOSED: Readonly<Record<number, string>> = {
  1000: 'The VM has ended, and its console with it.',
  1001: 'The server is restarting. Connect again in a moment.',
  1006: 'The connection broke. Connect again.',
  1008: 'Your session may no longer use this console.',
};

type Line = 'closed' | 'opening' | 'open';

export function TerminalPanel({ instance }: { readonly instance: Instance }) {
  const box = useRef<HTMLDivElement>(null);
  const [line, setLine] = useState<Line>('closed');
  const [problem, setProblem] = useState<string | null>(null);
  const close = useRef<() => void>(() => undefined);
  useEffect(() => () => close.current(), []);

  const open = async () => {
    setLine('opening');
    setProblem(null);
    try {
      const [{ openScreen }, { ticket }] = await Promise.all([
        import('./terminal-screen.ts').catch((cause: unknown) => {
          // A newer server has the file under another name.
          throw new Error('The terminal could not be loaded. Reload the page and connect again.', { cause });
        }),
        call('createConsoleTicket', { path: { id: instance.id }, body: {} }),
      ]);
      if (!box.current) return;
      const socket = new WebSocket(streamAddress(instance.id, ticket));
      const screen = openScreen(box.current, socket);
      let ended_here = false;
      close.current = () => {
        ended_here = true;
        socket.close();
        screen.dispose();
      };
      socket.addEventListener('open', () => setLine('open'));
      socket.addEventListener('close', ({ code }) => {
        setLine('closed');
        setProblem(ended_here ? null : (CLOSED[code] ?? `The console has closed (${code}).`));
        screen.dispose();
      });
    } catch (error) {
      setLine('closed');
      setProblem(sayError(error));
    }
  };
  const possible = whyFixed(instance) === undefined && OPEN_IN.includes(instance.vm.state);
  return (
    <Section
      title="Serial console"
      lead="A root shell on the guest’s serial line. It works without the guest’s network."
      actions={
        line === 'closed' ? (
          <Button
            kind="primary"
            reason={possible ? undefined : (whyFixed(instance) ?? NOT_NOW)}
            onClick={() => void open()}
          >
            Connect
          </Button>
        ) : (
          <Button busy={line === 'opening'} onClick={() => close.current()}>
            Disconnect
          </Button>
        )
      }
    >
      <Failure text={problem} />
      <div class={line === 'closed' ? 'console-box closed' : 'console-box'}>
        <div ref={box} class="console-screen" />
        {line === 'closed' && (
          <p class="dim">Not connected. Each connection is in the audit log of the organisation.</p>
        )}
      </div>
      <p class="hint">Ctrl+Shift+Escape moves the keyboard out of the terminal.</p>
      <ConsoleLog instance={instance} />
    </Section>
  );
}

function streamAddress(id: string, ticket: string): string {
  const address = new URL(`/v1/instances/${id}/vm/console/stream`, location.href);
  address.protocol = address.protocol === 'https:' ? 'wss:' : 'ws:';
  address.searchParams.set('ticket', ticket);
  return address.href;
}
