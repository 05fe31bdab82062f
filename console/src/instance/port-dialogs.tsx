/** The dialogs of HTTP ports. */
import type { Instance, Port } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { ConfirmDialog } from '../ui/confirm-dialog.tsx';
import { Field, Select } from '../ui/field.tsx';
import { FormDialog } from '../ui/form.tsx';
import { tell } from '../ui/toasts.tsx';

interface PublishProps {
  readonly instance: Instance;
  readonly onClose: () => void;
  readonly onPublished: () => Promise<void>;
}

export function PublishDialog({ instance: { id, name }, onClose, onPublished }: PublishProps) {
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
      {(issues) => (
        <>
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
            issue={issues['port']}
          />
          <Select
            label="Access"
            name="access"
            hint="Private: members, and API keys that may read the VM. Public: anybody who knows the URL."
            issue={issues['access']}
          >
            <option value="private">private</option>
            <option value="public">public</option>
          </Select>
        </>
      )}
    </FormDialog>
  );
}

interface Props {
  readonly port: Port;
  readonly onClose: () => void;
  readonly onDone: () => Promise<void>;
}

const pathOf = ({ id, instance_id }: Port) => ({ id: instance_id, port_id: id });

export function AccessDialog({ port, onClose, onDone }: Props) {
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

export function DeletePortDialog({ port, onClose, onDone }: Props) {
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

export function HostnameDialog({ port, onClose, onDone }: Props) {
  const add = async (form: FormData) => {
    const body = { hostname: String(form.get('hostname')).trim() };
    const { hostname } = await call('addPortHostname', { path: pathOf(port), body });
    tell('good', `Added ${hostname}.`);
    await onDone();
  };
  return (
    <FormDialog title={`Add a hostname to port ${port.port}`} verb="Add" onClose={onClose} work={add}>
      {(issues) => (
        <>
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
            issue={issues['hostname']}
          />
          <p class="hint">
            Also let the name lead to this installation, such as by a CNAME record for{' '}
            <code class="wrap">{port.hostname}</code>.
          </p>
        </>
      )}
    </FormDialog>
  );
}

export function RemoveHostnameDialog({
  port,
  hostname,
  onClose,
  onDone,
}: Props & { readonly hostname: string }) {
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
