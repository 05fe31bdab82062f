/** One HTTP port: its URL, who has access, its use, and its hostnames. */
import { useState } from 'preact/hooks';
import type { Instance, Port } from '../../../client/src/berth.ts';
import { plural } from '../format.ts';
import { Button } from '../ui/button.tsx';
import { Copyable } from '../ui/copy.tsx';
import { Icon } from '../ui/icon.tsx';
import { Time } from '../ui/time.tsx';
import { whyFixed } from './actions.ts';
import { AccessDialog, DeletePortDialog, HostnameDialog, RemoveHostnameDialog } from './port-dialogs.tsx';

interface Props {
  readonly instance: Instance;
  readonly port: Port;
  readonly onDone: () => Promise<void>;
}

type Asked = 'access' | 'hostname' | 'delete' | { readonly hostname: string } | null;

export function PortCard({ instance, port, onDone }: Props) {
  const [asked, setAsked] = useState<Asked>(null);
  const close = () => setAsked(null);
  const is_public = port.access === 'public';
  const fixed = whyFixed(instance);
  const dialog = { port, onClose: close, onDone };
  return (
    <article class="panel stack port" aria-label={`Port ${port.port}`}>
      <header class="port-head">
        <h3>Port {port.port}</h3>
        <span class={is_public ? 'tag accent' : 'tag'}>{port.access}</span>
        <span class="dim">
          {is_public ? 'Anybody has access.' : 'Only members and API keys that may read the VM have access.'}
        </span>
      </header>
      <div class="port-url">
        <Copyable text={port.url} label={`Copy the URL of port ${port.port}`} />
        <OpenLink instance={instance} port={port} />
      </div>
      <Use port={port} />
      {port.hostnames.map((own) => (
        <Hostname
          key={own.hostname}
          own={own}
          fixed={fixed}
          onRemove={() => setAsked({ hostname: own.hostname })}
        />
      ))}
      <div class="port-actions">
        <Button small reason={fixed} onClick={() => setAsked('access')}>
          {is_public ? 'Make private' : 'Make public'}
        </Button>
        {fixed === undefined && (
          <>
            <Button small onClick={() => setAsked('hostname')}>
              Add a hostname
            </Button>
            <Button small aria-label={`Delete port ${port.port}`} onClick={() => setAsked('delete')}>
              Delete
            </Button>
          </>
        )}
      </div>
      {asked === 'access' && <AccessDialog {...dialog} />}
      {asked === 'hostname' && <HostnameDialog {...dialog} />}
      {asked === 'delete' && <DeletePortDialog {...dialog} />}
      {asked !== null && typeof asked === 'object' && (
        <RemoveHostnameDialog {...dialog} hostname={asked.hostname} />
      )}
    </article>
  );
}

/** A private port is opened by a page of the console, which fetches a ticket. */
function OpenLink({ instance, port }: Pick<Props, 'instance' | 'port'>) {
  const href = port.access === 'public' ? port.url : `/instances/${instance.name}/ports/${port.id}`;
  return (
    <a
      class="button plain small"
      href={href}
      target="_blank"
      rel="noopener noreferrer"
      aria-label={`Open port ${port.port} in a new tab`}
    >
      <span class="button-label">
        <Icon name="open" />
        Open
      </span>
    </a>
  );
}

function Use({ port: { requests_per_minute, last_error } }: Pick<Props, 'port'>) {
  return (
    <p class="port-use">
      <span>{plural(requests_per_minute, 'request')} a minute</span>
      {last_error === null ? (
        <span class="dim">No errors</span>
      ) : (
        <span>
          Last error: {last_error.message}{' '}
          <span class="dim">
            <Time at={last_error.at} />
          </span>
        </span>
      )}
    </p>
  );
}

interface HostnameProps {
  readonly own: Port['hostnames'][number];
  readonly fixed: string | undefined;
  readonly onRemove: () => void;
}

function Hostname({ own, fixed, onRemove }: HostnameProps) {
  const { hostname, status, txt, problem } = own;
  return (
    <div class="port-hostname">
      <div class="port-head">
        <strong class="wrap">{hostname}</strong>
        <span class={status === 'active' ? 'tag accent' : 'tag'}>{status}</span>
        {fixed === undefined && (
          <Button small kind="quiet" aria-label={`Remove ${hostname}`} onClick={onRemove}>
            Remove
          </Button>
        )}
      </div>
      {status === 'pending' && (
        <>
          <p class="hint">
            Make this TXT record. Berth looks for it, and activates the hostname when it finds it.
          </p>
          <Copyable text={txt.name} label={`Copy the name of the TXT record of ${hostname}`} />
          <Copyable text={txt.value} label={`Copy the value of the TXT record of ${hostname}`} />
          {problem !== null && <p class="hint">{problem}</p>}
        </>
      )}
    </div>
  );
}
