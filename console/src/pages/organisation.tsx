/** The organisation: its name, quotas and members. */
import { useState } from 'preact/hooks';
import { call } from '../api.ts';
import { chooseOrganisation, leads, loadMembership, org, role, whyNoLead } from '../live/membership.ts';
import { Invitations } from '../organisation/invitations.tsx';
import { Members } from '../organisation/members.tsx';
import { Quota } from '../organisation/quota.tsx';
import { Button } from '../ui/button.tsx';
import { Field } from '../ui/field.tsx';
import { Form, FormDialog } from '../ui/form.tsx';
import { PageHead, Section } from '../ui/page.tsx';
import { tell } from '../ui/toasts.tsx';

export function OrganisationPage() {
  const [creating, setCreating] = useState(false);
  return (
    <>
      <PageHead
        title={org.value?.name ?? 'Organisation'}
        lead={`Your role here is ${role.value ?? 'member'}.`}
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
  const rename = async (form: FormData) => {
    await call('changeOrg', { path: { id }, body: { name: String(form.get('name')).trim() } });
    await loadMembership();
    tell('good', 'Saved.');
  };
  const bill = async (form: FormData) => {
    await call('changeBillingEmail', { path: { id }, body: { email: String(form.get('email')).trim() } });
    await loadMembership();
    tell('good', 'Changed the billing address. The old and the new address get a mail.');
  };
  const bills = leads() || role.value === 'billing';
  return (
    <Section title="Settings">
      <div class="panel columns">
        <Form verb="Rename" edits work={rename} reason={whyNoLead()}>
          {(issues) => (
            <Field
              label="Name"
              name="name"
              required
              maxLength={100}
              disabled={!leads()}
              defaultValue={org.value?.name ?? ''}
              issue={issues['name']}
            />
          )}
        </Form>
        <Form verb="Change" edits work={bill} reason={bills ? undefined : whyNoLead()}>
          {(issues) => (
            <Field
              label="Billing address"
              name="email"
              type="text"
              inputMode="email"
              required
              disabled={!bills}
              defaultValue={org.value?.billing_email ?? ''}
              issue={issues['email']}
            />
          )}
        </Form>
      </div>
    </Section>
  );
}

function CreateOrganisation({ onClose }: { readonly onClose: () => void }) {
  const work = async (form: FormData) => {
    const made = await call('createOrg', { body: { name: String(form.get('name')).trim() } });
    onClose();
    chooseOrganisation(made.id);
  };
  return (
    <FormDialog title="New organisation" verb="Create" onClose={onClose} work={work}>
      {(issues) => (
        <Field label="Name" name="name" required autofocus maxLength={100} issue={issues['name']} />
      )}
    </FormDialog>
  );
}
