/** The SSH keys of the account. */
import { useState } from 'preact/hooks';
import type { SshKey } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { Button } from '../ui/button.tsx';
import { ConfirmDialog } from '../ui/confirm-dialog.tsx';
import { Copyable } from '../ui/copy.tsx';
import { Dialog, DialogActions } from '../ui/dialog.tsx';
import { Failure } from '../ui/failure.tsx';
import { Field, TextArea } from '../ui/field.tsx';
import { Icon } from '../ui/icon.tsx';
import { More } from '../ui/more.tsx';
import { Empty, Loaded, PageHead } from '../ui/page.tsx';
import { Time } from '../ui/time.tsx';
import { useAction } from '../use-action.ts';
import { useList } from '../use-list.ts';

export function SshKeysPage() {
  const [adding, setAdding] = useState(false);
  const [removed, setRemoved] = useState<SshKey | null>(null);
  const list = useList('ssh-keys', (cursor) =>
    call('listSshKeys', { query: cursor === undefined ? {} : { cursor } }),
  );
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
        lead="Keys of your account. Instances you make let all of them in, unless you choose otherwise."
        actions={add}
      />
      <Loaded query={list}>
        {(keys) =>
          keys.length === 0 ? (
            <Empty icon="key" title="No SSH keys yet">
              <p>
                Add the public key of this computer, and it can log in to your instances. If it has none, make
                one:
              </p>
              <Copyable text="ssh-keygen -t ed25519" label="Copy the command that makes a key" />
              {add}
            </Empty>
          ) : (
            <table class="table">
              <thead>
                <tr>
                  <th>Name</th>
                  <th class="wide-only">Fingerprint</th>
                  <th>Last used</th>
                  <th class="wide-only">Added</th>
                  <th class="end">
                    <span class="hidden">Actions</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {keys.map((key) => (
                  <tr key={key.id}>
                    <td>
                      {key.name} <span class="tag">{key.type}</span>
                    </td>
                    <td class="wide-only">
                      <code class="wrap">{key.fingerprint}</code>
                    </td>
                    <td class="nowrap">
                      <Time at={key.last_used_at} />
                    </td>
                    <td class="wide-only nowrap">
                      <Time at={key.created_at} />
                    </td>
                    <td class="end">
                      <Button
                        small
                        kind="quiet"
                        aria-label={`Revoke ${key.name}`}
                        onClick={() => setRemoved(key)}
                      >
                        Revoke
                      </Button>
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          )
        }
      </Loaded>
      <More more={list.more} />
      {adding && <AddKey onClose={() => setAdding(false)} onAdded={list.reload} />}
      {removed && (
        <ConfirmDialog
          title={`Revoke ${removed.name}`}
          verb="Revoke"
          onClose={() => setRemoved(null)}
          work={async () => {
            await call('revokeSshKey', { path: { id: removed.id } });
            await list.reload();
          }}
        >
          <p>
            It lets nobody in any more, at once. Connections that it has open now are closed within seconds.
          </p>
        </ConfirmDialog>
      )}
    </>
  );
}

function AddKey({
  onClose,
  onAdded,
}: {
  readonly onClose: () => void;
  readonly onAdded: () => Promise<void>;
}) {
  const action = useAction(async (form: FormData) => {
    const public_key = String(form.get('public_key')).trim();
    // Its comment says whose it is, mostly user@machine.
    const name = String(form.get('name')).trim() || public_key.split(/\s+/)[2] || 'my key';
    await call('addSshKey', { body: { name, public_key } });
    await onAdded();
  });
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    if (await action.run(new FormData(event.currentTarget as HTMLFormElement))) onClose();
  };
  return (
    <Dialog title="Add an SSH key" onClose={onClose} wide>
      <form onSubmit={submit}>
        <div class="dialog-body">
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
            issue={action.issues['public_key']}
          />
          <Field
            label="Name"
            name="name"
            maxLength={100}
            hint="Empty: the comment at the key’s end"
            issue={action.issues['name']}
          />
          <Failure text={action.error} />
        </div>
        <DialogActions>
          <Button onClick={onClose}>Cancel</Button>
          <Button submit kind="primary" busy={action.busy}>
            Add
          </Button>
        </DialogActions>
      </form>
    </Dialog>
  );
}
