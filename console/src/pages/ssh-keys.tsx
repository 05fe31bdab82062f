/** The page that lists, adds and revokes the SSH keys of the user's account. */
import { useState } from 'preact/hooks';
import { call } from '../api.ts';
import { orgs } from '../live/membership.ts';
import { Button, Copyable } from '../ui/button.tsx';
import { NameField, TextArea } from '../ui/field.tsx';
import { FormDialog } from '../ui/form.tsx';
import { Icon } from '../ui/icon.tsx';
import { Empty, PageHead } from '../ui/page.tsx';
import { ListTable } from '../ui/table.tsx';
import { Time } from '../ui/time.tsx';
import { useList } from '../use-query.ts';

export function SshKeysPage() {
  const [adding, setAdding] = useState(false);
  const list = useList('ssh-keys', (query) => call('listSshKeys', { query }));
  const add = (
    <Button kind="primary" onClick={() => setAdding(true)}>
      <Icon name="plus" />
      Add a key
    </Button>
  );
  return (
    <>
      <PageHead
        title="SSH keys"
        lead="The keys of your account. Instances that you create accept all of them, unless you choose otherwise. A key added with an API key or from the command line works only for one organisation’s instances."
        actions={add}
      />
      <ListTable
        list={list}
        empty={
          <Empty icon="key" title="No SSH keys yet">
            <p>
              Add the public key of this computer, and it can log in to your instances. If it has none, create
              one:
            </p>
            <Copyable text="ssh-keygen -t ed25519" label="Copy the command that creates a key" />
          </Empty>
        }
        columns={[
          {
            head: 'Name',
            cell: ({ name, type, org_id }) => (
              <>
                <span class="wrap">{name}</span> <span class="tag">{type}</span>{' '}
                {org_id !== null && <span class="tag">only {orgNamed(org_id)}</span>}
              </>
            ),
          },
          {
            head: 'Fingerprint',
            below: true,
            cell: (key) => <code class="wrap">{key.fingerprint}</code>,
          },
          {
            head: 'Last used',
            class: 'nowrap',
            below: true,
            cell: (key) => <Time at={key.last_used_at} />,
          },
          { head: 'Added', class: 'nowrap', below: true, cell: (key) => <Time at={key.created_at} /> },
        ]}
        actions={[
          {
            name: 'Revoke',
            about: ({ name }) => `Revoke ${name}`,
            warning: 'Logins with it are refused at once. Its open connections are closed within seconds.',
            work: ({ id }) => call('revokeSshKey', { path: { id } }),
          },
        ]}
      />
      {adding && (
        <AddKey
          taken={list.data?.map(({ name }) => name) ?? []}
          onClose={() => setAdding(false)}
          onAdded={list.reload}
        />
      )}
    </>
  );
}

function orgNamed(id: string): string {
  return orgs.value.find((each) => each.id === id)?.name ?? id;
}

interface AddKeyProps {
  readonly taken: readonly string[];
  readonly onClose: () => void;
  readonly onAdded: () => Promise<void>;
}

function AddKey({ taken, onClose, onAdded }: AddKeyProps) {
  const work = async (form: FormData) => {
    const public_key = String(form.get('public_key')).trim();
    // A key's comment names its owner, usually user@machine.
    const name = String(form.get('name')).trim() || public_key.split(/\s+/)[2] || 'my key';
    await call('addSshKey', { body: { name, public_key } });
    await onAdded();
  };
  return (
    <FormDialog title="Add an SSH key" verb="Add" onClose={onClose} work={work} wide>
      <TextArea
        label="Public key"
        name="public_key"
        rows={4}
        required
        autofocus
        spellcheck={false}
        placeholder="ssh-ed25519 AAAA… you@laptop"
        hint={
          <>
            What <code>cat ~/.ssh/id_ed25519.pub</code> prints. Never the private key.
          </>
        }
      />
      <NameField what="SSH key" taken={taken} optional hint="Empty: the comment at the key’s end" />
    </FormDialog>
  );
}
