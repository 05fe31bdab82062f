/** The organisation: its name, what it may have, who is in it. */
import { useState } from 'preact/hooks';
import { call } from '../api.ts';
import { chooseOrganisation, leads, loadMembership, org, role } from '../live/membership.ts';
import { Invitations } from '../organisation/invitations.tsx';
import { Members } from '../organisation/members.tsx';
import { Quota } from '../organisation/quota.tsx';
import { Button } from '../ui/button.tsx';
import { Dialog, DialogActions } from '../ui/dialog.tsx';
import { Failure } from '../ui/failure.tsx';
import { Field } from '../ui/field.tsx';
import { PageHead, Section } from '../ui/page.tsx';
import { tell } from '../ui/toasts.tsx';
import { useAction } from '../use-action.ts';

export function OrganisationPage() {
  const [creating, setCreating] = useState(false);
  return (
    <>
      <PageHead
        title={org.value?.name ?? 'Organisation'}
        lead={`You are ${role.value ?? 'a member'} here.`}
        actions={<Button onClick={() => setCreating(true)}>New organisation</Button>}
      />
      <Quota />
      {leads() && <Members />}
      {leads() && <Invitations />}
      <Settings />
      {creating && <CreateOrganisation onClose={() => setCreating(false)} />}
    </>
  );
}

function Settings() {
  const id = org.value?.id ?? '';
  const rename = useAction(async (form: FormData) => {
    await call('changeOrg', { path: { id }, body: { name: String(form.get('name')).trim() } });
    await loadMembership();
    tell('good', 'Saved.');
  });
  const bill = useAction(async (form: FormData) => {
    await call('changeBillingEmail', { path: { id }, body: { email: String(form.get('email')).trim() } });
    await loadMembership();
    tell('good', 'The billing address is changed. Both addresses are told.');
  });
  const submit = (action: typeof rename) => (event: SubmitEvent) => {
    event.preventDefault();
    void action.run(new FormData(event.currentTarget as HTMLFormElement));
  };
  const bills = leads() || role.value === 'billing';
  return (
    <Section title="Settings">
      <div class="panel columns">
        <form class="stack" onSubmit={submit(rename)}>
          <Field
            label="Name"
            name="name"
            required
            maxLength={100}
            disabled={!leads()}
            defaultValue={org.value?.name ?? ''}
            issue={rename.issues['name']}
          />
          <Failure text={rename.error} />
          <div>
            <Button submit busy={rename.busy} disabled={!leads()}>
              Rename
            </Button>
          </div>
        </form>
        <form class="stack" onSubmit={submit(bill)}>
          <Field
            label="Billing address"
            name="email"
            type="text"
            inputMode="email"
            required
            disabled={!bills}
            defaultValue={org.value?.billing_email ?? ''}
            issue={bill.issues['email']}
          />
          <Failure text={bill.error} />
          <div>
            <Button submit busy={bill.busy} disabled={!bills}>
              Change
            </Button>
          </div>
        </form>
      </div>
    </Section>
  );
}

function CreateOrganisation({ onClose }: { readonly onClose: () => void }) {
  const action = useAction(async (form: FormData) => {
    const made = await call('createOrg', { body: { name: String(form.get('name')).trim() } });
    onClose();
    chooseOrganisation(made.id);
  });
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    void action.run(new FormData(event.currentTarget as HTMLFormElement));
  };
  return (
    <Dialog title="New organisation" onClose={onClose}>
      <form onSubmit={submit}>
        <div class="dialog-body">
          <Field label="Name" name="name" required autofocus maxLength={100} issue={action.issues['name']} />
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
