/**
 * The Ports section of an instance's page: a card for each published HTTP port, and the dialogs that publish or delete
 * a port, change its access, and add or remove a hostname.
 *
 * `OpenPort` is the page behind the Open link of a private port: it gets a single-use ticket for this session, and
 * redirects the browser to the port's URL with it.
 */
import { useEffect, useState } from 'preact/hooks';
import { BerthError, type Instance, type Port } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { plural } from '../format.ts';
import type { LiveMessage } from '../live/streams.ts';
import { Button, Copyable } from '../ui/button.tsx';
import { Field, Select } from '../ui/field.tsx';
import { ConfirmDialog, FormDialog } from '../ui/form.tsx';
import { Icon } from '../ui/icon.tsx';
import { Empty, Loaded, PageHead, Section } from '../ui/page.tsx';
import { LoadedList } from '../ui/table.tsx';
import { Time } from '../ui/time.tsx';
import { tell } from '../ui/toasts.tsx';
import { useList, useQuery, useReloads } from '../use-query.ts';
import { whyFixed } from './actions.tsx';

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
  useReloads(reload, EVERY_MS);
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

interface PortCardProps {
  readonly instance: Instance;
  readonly port: Port;
  readonly onDone: () => Promise<void>;
}

type Asked = 'access' | 'hostname' | 'delete' | { readonly hostname: string } | null;

/** One HTTP port: its URL, who has access, its use, and its hostnames. */
function PortCard({ instance, port, onDone }: PortCardProps) {
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
function OpenLink({ instance, port }: Pick<PortCardProps, 'instance' | 'port'>) {
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

function Use({ port: { requests_per_minute, last_error } }: Pick<PortCardProps, 'port'>) {
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

interface PublishProps {
  readonly instance: Instance;
  readonly onClose: () => void;
  readonly onPublished: () => Promise<void>;
}

function PublishDialog({ instance: { id, name }, onClose, onPublished }: PublishProps) {
  const publish = async (form: FormData) => {
    const body = {
      port: Number(form.get('port')),
      access: form.get('access') === 'public' ? ('public' as const) : ('private' as const),
    };
    await call('createPort', { path: { id }, body });
    tell('good', `Published port ${body.port}.`);
    await onPublished();
  };
  return (
    <FormDialog title={`Publish a port of ${name}`} verb="Publish" onClose={onClose} work={publish}>
      <Field
        label="Port in the guest"
        name="port"
        type="number"
        required
        min={1}
        max={65_535}
        step={1}
        placeholder="8080"
        autofocus
        hint="The program in the guest must listen on all addresses (0.0.0.0), not on 127.0.0.1 alone."
      />
      <Select
        label="Access"
        name="access"
        hint="Private: members, and API keys that may read the VM. Public: anybody who knows the URL."
      >
        <option value="private">private</option>
        <option value="public">public</option>
      </Select>
    </FormDialog>
  );
}

interface AccessDialogProps {
  readonly port: Port;
  readonly onClose: () => void;
  readonly onDone: () => Promise<void>;
}

const pathOf = ({ id, instance_id }: Port) => ({ id: instance_id, port_id: id });

function AccessDialog({ port, onClose, onDone }: AccessDialogProps) {
  const access = port.access === 'public' ? 'private' : 'public';
  const change = async () => {
    await call('changePort', { path: pathOf(port), body: { access } });
    tell('good', `Port ${port.port} is ${access}.`);
    await onDone();
  };
  return (
    <ConfirmDialog
      title={`Make port ${port.port} ${access}?`}
      verb={`Make ${access}`}
      harmless={access === 'private'}
      onClose={onClose}
      work={change}
    >
      <p>
        {access === 'public'
          ? 'Anybody who knows the URL can then open it, without logging in.'
          : 'Only members and API keys that may read the VM then have access. All other connections end within 5 s.'}
      </p>
    </ConfirmDialog>
  );
}

function DeletePortDialog({ port, onClose, onDone }: AccessDialogProps) {
  const remove = async () => {
    await call('deletePort', { path: pathOf(port) });
    tell('good', `Deleted ${port.hostname}.`);
    await onDone();
  };
  return (
    <ConfirmDialog
      title={`Delete the URL of port ${port.port}?`}
      verb="Delete"
      onClose={onClose}
      work={remove}
    >
      <p>
        <code class="wrap">{port.hostname}</code> stops working at once, and the name is never assigned again.
      </p>
    </ConfirmDialog>
  );
}

function HostnameDialog({ port, onClose, onDone }: AccessDialogProps) {
  const add = async (form: FormData) => {
    const body = { hostname: String(form.get('hostname')).trim() };
    const { hostname } = await call('addPortHostname', { path: pathOf(port), body });
    tell('good', `Added ${hostname}.`);
    await onDone();
  };
  return (
    <FormDialog title={`Add a hostname to port ${port.port}`} verb="Add" onClose={onClose} work={add}>
      <Field
        label="Hostname"
        name="hostname"
        required
        maxLength={253}
        placeholder="app.example.com"
        autocapitalize="off"
        spellcheck={false}
        autofocus
        hint="A name of your own. Next you get a TXT record that proves it."
      />
      <p class="hint">
        Also let the name lead to this installation, such as by a CNAME record for{' '}
        <code class="wrap">{port.hostname}</code>.
      </p>
    </FormDialog>
  );
}

function RemoveHostnameDialog({
  port,
  hostname,
  onClose,
  onDone,
}: AccessDialogProps & { readonly hostname: string }) {
  const remove = async () => {
    await call('deletePortHostname', { path: { ...pathOf(port), hostname } });
    tell('good', `Removed ${hostname}.`);
    await onDone();
  };
  return (
    <ConfirmDialog title={`Remove ${hostname}?`} verb="Remove" onClose={onClose} work={remove}>
      <p>Requests to this name get 404 from now on.</p>
    </ConfirmDialog>
  );
}

/** Leads this tab to an HTTP port. A private one takes a ticket of this session, which works once. */
export function OpenPort({ instance, port_id }: { readonly instance: Instance; readonly port_id: string }) {
  const query = useQuery(`open ${port_id}`, () => urlOf(instance.id, port_id));
  const { data: url } = query;
  useEffect(() => {
    // The ticket stays out of the history.
    if (url !== undefined) location.replace(url);
  }, [url]);
  return (
    <>
      <PageHead title={`Opening a port of ${instance.name}`} />
      <Loaded query={query}>{(found) => <p class="hint">Opening {new URL(found).host} …</p>}</Loaded>
    </>
  );
}

async function urlOf(id: string, port_id: string): Promise<string> {
  const path = { id, port_id };
  try {
    return (await call('openPort', { path })).url;
  } catch (error) {
    // A public port takes no ticket.
    if (!(error instanceof BerthError) || error.code !== 'CONFLICT') throw error;
    return (await call('getPort', { path })).url;
  }
}
