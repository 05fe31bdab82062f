/** The secrets of an instance: its VM uses them, and they cannot be read. */
import { useState } from 'preact/hooks';
import type { Instance, Secret } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { Button } from '../ui/button.tsx';
import { Icon } from '../ui/icon.tsx';
import { LoadedList } from '../ui/loaded-list.tsx';
import { Empty, Section } from '../ui/page.tsx';
import { Table } from '../ui/table.tsx';
import { Time } from '../ui/time.tsx';
import { tell } from '../ui/toasts.tsx';
import { useList } from '../use-list.ts';
import { whyFixed } from './actions.ts';
import { SecretDialog } from './secret-dialog.tsx';

interface Row extends Secret {
  readonly id: string;
}

/** Changes of secrets have no events. */
const never = () => false;

export function SecretsPanel({ instance }: { readonly instance: Instance }) {
  const { id, name } = instance;
  /** The secret whose dialog is open; 'new' for another. */
  const [open, setOpen] = useState<Secret | 'new' | null>(null);
  const list = useList(`secrets ${id}`, (query) => call('listSecrets', { path: { id }, query }), never);
  const { reload } = list;
  const remove = async (row: Row) => {
    await call('deleteSecret', { path: { id, name: row.name } });
    tell('good', `Deleted ${row.name}.`);
  };
  const fixed = whyFixed(instance);
  return (
    <Section
      title="Secrets"
      lead="The guest has a placeholder only. The host puts the value into headers of HTTPS requests to the hosts that you name."
      actions={
        <Button kind="primary" reason={fixed} onClick={() => setOpen('new')}>
          <Icon name="plus" />
          Set a secret
        </Button>
      }
    >
      <Limits />
      <LoadedList
        list={list}
        empty={
          <Empty icon="key" title="No secrets yet">
            <p>Set an API key here: programs in {name} can use it, and no search of the VM finds it.</p>
          </Empty>
        }
      >
        {(secrets) => (
          <Table<Row>
            rows={secrets.map((each) => ({ ...each, id: each.name }))}
            columns={[
              { head: 'Name', class: 'wrap', cell: (row) => <Name secret={row} /> },
              { head: 'Hosts', class: 'wrap', below: true, cell: ({ hosts }) => hosts.join(', ') },
              { head: 'Updated', class: 'wide-only', cell: ({ updated_at }) => <Time at={updated_at} /> },
            ]}
            actions={
              fixed
                ? []
                : [
                    {
                      name: ({ has_value }) => (has_value ? 'Replace' : 'Set value'),
                      about: (row) => `Replace the value of ${row.name}`,
                      work: (row) => setOpen(row),
                    },
                    {
                      name: 'Delete',
                      about: (row) => `Delete ${row.name}`,
                      warning:
                        'Requests with its placeholder no longer get the value. New sessions do not have the variable.',
                      work: remove,
                    },
                  ]
            }
            onDone={reload}
          />
        )}
      </LoadedList>
      {open !== null && (
        <SecretDialog
          instance={instance}
          secret={open === 'new' ? null : open}
          onClose={() => setOpen(null)}
          onDone={reload}
        />
      )}
    </Section>
  );
}

function Name({ secret: { name, has_value } }: { readonly secret: Secret }) {
  return (
    <>
      <code class="wrap">BERTH_SECRET_{name}</code>
      {!has_value && <p class="hint">No value yet: the fork inherited the name only.</p>}
    </>
  );
}

function Limits() {
  return (
    <div class="notice spaced">
      <p>
        The value is in no memory, disk, generation or fork of the VM, and no log or answer has it. It is not
        protected from a host that you name: one that sends a request's headers back shows the value to the
        guest. Anyone who runs programs in the VM can use the secret, as long as it is set.
      </p>
    </div>
  );
}
