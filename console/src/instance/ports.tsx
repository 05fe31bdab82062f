/** The HTTP ports of an instance: URLs of what listens in the guest. */
import { useEffect, useState } from 'preact/hooks';
import type { Instance, Port } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import type { LiveMessage } from '../live/streams.ts';
import { Button } from '../ui/button.tsx';
import { Icon } from '../ui/icon.tsx';
import { LoadedList } from '../ui/loaded-list.tsx';
import { Empty, Section } from '../ui/page.tsx';
import { useList } from '../use-list.ts';
import { whyFixed } from './actions.ts';
import { PortCard } from './port-card.tsx';
import { PublishDialog } from './port-dialogs.tsx';

/** Requests a minute, errors and pending hostnames change without an event. */
const EVERY_MS = 5_000;

export function PortsPanel({ instance }: { readonly instance: Instance }) {
  const { id, name } = instance;
  const [publishing, setPublishing] = useState(false);
  const list = useList(
    `ports ${id}`,
    (query) => call('listPorts', { path: { id }, query }),
    (message) => concerns(message, id),
  );
  const { reload } = list;
  useEffect(() => {
    const timer = setInterval(() => void (document.hidden || reload()), EVERY_MS);
    return () => clearInterval(timer);
  }, [reload]);
  const publish = (
    <Button kind="primary" reason={whyFixed(instance)} onClick={() => setPublishing(true)}>
      <Icon name="plus" />
      Publish a port
    </Button>
  );
  return (
    <Section
      title="Ports"
      lead={
        <>
          A published port has a URL for the web server or API that listens in the guest. For any other TCP
          port, such as a database: <code>berth forward {name} 5432</code>
        </>
      }
      actions={publish}
    >
      <LoadedList
        list={list}
        empty={
          <Empty icon="globe" title="No ports yet">
            <p>Start a web server in the guest, and publish its port: you get a URL for it.</p>
          </Empty>
        }
      >
        {(ports) => (
          <div class="stack">
            {ports.map((port) => (
              <PortCard key={port.id} instance={instance} port={port} onDone={reload} />
            ))}
          </div>
        )}
      </LoadedList>
      {publishing && (
        <PublishDialog instance={instance} onClose={() => setPublishing(false)} onPublished={reload} />
      )}
    </Section>
  );
}

function concerns(message: LiveMessage, id: string): boolean {
  if (message.kind !== 'event' || !message.event.type.startsWith('port.')) return false;
  return (message.event.data['port'] as Port | undefined)?.instance_id === id;
}
