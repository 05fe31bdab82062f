/** Holders of API keys that are no person. */
import { useState } from 'preact/hooks';
import type { ServiceAccount } from '../../../client/src/generated.ts';
import { call } from '../api.ts';
import { Button } from '../ui/button.tsx';
import { ConfirmDialog } from '../ui/confirm-dialog.tsx';
import { Dialog, DialogActions } from '../ui/dialog.tsx';
import { Failure } from '../ui/failure.tsx';
import { Field } from '../ui/field.tsx';
import { More } from '../ui/more.tsx';
import { Loaded, Section } from '../ui/page.tsx';
import { SecretDialog } from '../ui/secret-dialog.tsx';
import { Time } from '../ui/time.tsx';
import { useAction } from '../use-action.ts';
import { useList } from '../use-list.ts';
import { CreateKeyDialog, type MadeKey } from './create-key-dialog.tsx';
import { ScopeChoice } from './scope-choice.tsx';
import { scopeOf } from './scopes.ts';

export function ServiceAccounts() {
  const [creating, setCreating] = useState(false);
  const [asked, setAsked] = useState<{ what: 'key' | 'delete'; account: ServiceAccount } | null>(null);
  const [made, setMade] = useState<MadeKey | null>(null);
  const list = useList('service-accounts', (cursor) =>
    call('listServiceAccounts', { query: cursor === undefined ? {} : { cursor } }),
  );
  const close = () => setAsked(null);
  return (
    <Section
      title="Service accounts"
      lead="Their keys stay when people go: for continuous integration and the like."
      actions={<Button onClick={() => setCreating(true)}>New service account</Button>}
    >
      <Loaded query={list} lines={1}>
        {(accounts) =>
          accounts.length === 0 ? (
            <p class="panel dim">None yet. A key of a service account is not bound to a person.</p>
          ) : (
            <table class="table">
              <thead>
                <tr>
                  <th>Name</th>
                  <th class="wide-only">Scope</th>
                  <th class="wide-only">Made</th>
                  <th class="end">
                    <span class="hidden">Actions</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {accounts.map((account) => (
                  <tr key={account.id}>
                    <td>{account.name}</td>
                    <td class="wide-only">
                      <code class="wrap">{account.scope}</code>
                    </td>
                    <td class="wide-only nowrap">
                      <Time at={account.created_at} />
                    </td>
                    <td class="end">
                      <div class="actions">
                        <Button
                          small
                          aria-label={`New key of ${account.name}`}
                          onClick={() => setAsked({ what: 'key', account })}
                        >
                          New key
                        </Button>
                        <Button
                          small
                          kind="quiet"
                          aria-label={`Delete ${account.name}`}
                          onClick={() => setAsked({ what: 'delete', account })}
                        >
                          Delete
                        </Button>
                      </div>
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          )
        }
      </Loaded>
      <More more={list.more} />
      {creating && <CreateAccount onClose={() => setCreating(false)} onMade={list.reload} />}
      {asked?.what === 'key' && (
        <CreateKeyDialog holder={asked.account} onClose={close} onMade={async (key) => setMade(key)} />
      )}
      {asked?.what === 'delete' && (
        <ConfirmDialog
          title={`Delete ${asked.account.name}`}
          verb="Delete"
          onClose={close}
          work={async () => {
            await call('deleteServiceAccount', { path: { id: asked.account.id } });
            await list.reload();
          }}
        >
          <p>All its keys end at once.</p>
        </ConfirmDialog>
      )}
      {made && (
        <SecretDialog
          title={`API key ${made.name}`}
          secret={made.key}
          label="Copy the API key"
          onClose={() => setMade(null)}
        >
          <p>A key of a service account.</p>
        </SecretDialog>
      )}
    </Section>
  );
}

function CreateAccount({
  onClose,
  onMade,
}: {
  readonly onClose: () => void;
  readonly onMade: () => Promise<void>;
}) {
  const action = useAction(async (form: FormData) => {
    await call('createServiceAccount', {
      body: { name: String(form.get('name')).trim(), scope: scopeOf(form) },
    });
    await onMade();
  });
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    if (await action.run(new FormData(event.currentTarget as HTMLFormElement))) onClose();
  };
  return (
    <Dialog title="New service account" onClose={onClose} wide>
      <form onSubmit={submit}>
        <div class="dialog-body">
          <Field
            label="Name"
            name="name"
            required
            autofocus
            maxLength={100}
            placeholder="ci"
            issue={action.issues['name']}
          />
          <ScopeChoice issue={action.issues['scope']} />
          <Failure text={action.error} />
        </div>
        <DialogActions>
          <Button onClick={onClose}>Cancel</Button>
          <Button submit kind="primary" busy={action.busy}>
            Make it
          </Button>
        </DialogActions>
      </form>
    </Dialog>
  );
}
