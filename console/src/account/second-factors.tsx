/**
 * The section of the account page for second factors: lists, adds and removes passkeys and authenticator apps, and
 * shows new recovery codes once.
 */
import { useState } from 'preact/hooks';
import { encode } from 'uqr';
import type { AddMfaFactorResponse } from '../../../client/src/generated.ts';
import { call } from '../api.ts';
import { user } from '../session.ts';
import { Button, Copyable } from '../ui/button.tsx';
import { SecretDialog } from '../ui/dialog.tsx';
import { Field } from '../ui/field.tsx';
import { FormDialog } from '../ui/form.tsx';
import { Icon } from '../ui/icon.tsx';
import { Failure, Section } from '../ui/page.tsx';
import { ListTable } from '../ui/table.tsx';
import { Time } from '../ui/time.tsx';
import { useAction } from '../use-action.ts';
import { useList } from '../use-query.ts';
import { AppCodeField, createPasskey, passkeyProblem } from './credentials.tsx';

const KINDS = { totp: 'authenticator app', webauthn: 'passkey' } as const;

export function Factors() {
  const [enrolling, setEnrolling] = useState(false);
  const [codes, setCodes] = useState<readonly string[] | null>(null);
  const list = useList('factors', (query) => call('listMfaFactors', { query }));
  const confirmed = list.data?.filter(({ confirmed_at }) => confirmed_at !== null);
  const problem = passkeyProblem();
  const onChanged = async (recovery_codes: readonly string[] | null) => {
    setCodes(recovery_codes);
    user.value = await call('getMe', {});
    await list.reload();
  };
  const passkey = useAction(async () => {
    const added = await call('addMfaFactor', { body: { type: 'webauthn', name: nameOfToday() } });
    if (added.type !== 'webauthn') return;
    const body = (await createPasskey(added.options)) as never;
    await onChanged((await call('verifyMfaFactor', { path: { id: added.id }, body })).recovery_codes);
  });
  return (
    <Section
      title="Second factors"
      lead="With a second factor, your password alone no longer gives access. A passkey can also replace the password."
      actions={
        <>
          <Button onClick={() => setEnrolling(true)}>
            <Icon name="shield" />
            Add an app
          </Button>
          <Button busy={passkey.busy} disabled={problem !== null} onClick={() => void passkey.run()}>
            <Icon name="key" />
            Add a passkey
          </Button>
        </>
      }
    >
      {problem !== null && <p class="hint">{problem}</p>}
      <Failure text={passkey.error} />
      <ListTable
        list={{ ...list, data: confirmed }}
        lines={2}
        empty={
          <p class="panel notice">
            None yet: your password alone gives access. Add an authenticator app or a passkey.
          </p>
        }
        columns={[
          { head: 'Name', cell: ({ name }) => name },
          { head: 'Kind', below: true, cell: ({ type }) => KINDS[type] },
          {
            head: 'Last used',
            class: 'nowrap',
            below: true,
            cell: (factor) => <Time at={factor.last_used_at} />,
          },
        ]}
        actions={[
          {
            name: 'Remove',
            about: ({ name }) => `Remove ${name}`,
            warning:
              'It can no longer be used to log in. If it is the last factor, the recovery codes are removed too.',
            work: async ({ id }) => {
              await call('removeMfaFactor', { path: { id } });
              await onChanged(null);
            },
          },
        ]}
      />
      {enrolling && <EnrolTotp onClose={() => setEnrolling(false)} onConfirmed={onChanged} />}
      {codes && <RecoveryCodes codes={codes} onClose={() => setCodes(null)} />}
    </Section>
  );
}

function nameOfToday(): string {
  return `passkey of ${new Date().toISOString().slice(0, 10)}`;
}

type Totp = Extract<AddMfaFactorResponse, { type: 'totp' }>;

interface Props {
  readonly onClose: () => void;
  readonly onConfirmed: (recovery_codes: readonly string[] | null) => Promise<void>;
}

/** Adds an authenticator app in three steps: a name, the QR code, and a code that proves that it works. */
function EnrolTotp({ onClose, onConfirmed }: Props) {
  const [added, setAdded] = useState<Totp | null>(null);
  const add = async (form: FormData) => {
    const name = String(form.get('name')).trim();
    const factor = await call('addMfaFactor', { body: { type: 'totp', name } });
    if (factor.type === 'totp') setAdded(factor);
  };
  const verify = async ({ id }: Totp, form: FormData) => {
    const code = String(form.get('code')).trim();
    const { recovery_codes } = await call('verifyMfaFactor', { path: { id }, body: { code } });
    onClose();
    await onConfirmed(recovery_codes);
  };
  return (
    <FormDialog
      title="Add an authenticator app"
      verb={added ? 'Confirm' : 'Next'}
      onClose={onClose}
      // Each step decides itself whether it closes the dialog.
      onDone={() => undefined}
      work={(form) => (added ? verify(added, form) : add(form))}
    >
      {added ? <Scan key="scan" totp={added} /> : <Name key="name" />}
    </FormDialog>
  );
}

function Name() {
  return (
    <Field
      label="Name"
      name="name"
      required
      maxLength={100}
      defaultValue="phone"
      autofocus
      hint="Names this app among your factors"
    />
  );
}

function Scan({ totp }: { readonly totp: Totp }) {
  return (
    <>
      <p>Scan this with the app, then type the code that it shows.</p>
      <QrCode text={totp.otpauth_url} label="QR code for the authenticator app" />
      <details>
        <summary>Type the secret instead</summary>
        <Copyable text={totp.secret} label="Copy the secret" />
      </details>
      <AppCodeField label="Code" />
    </>
  );
}

/** Dark on white in every theme, because cameras need that. */
function QrCode({ text, label }: { readonly text: string; readonly label: string }) {
  const { data, size } = encode(text, { border: 4 });
  const path = data.flatMap((row, y) => row.map((dark, x) => (dark ? `M${x} ${y}h1v1h-1z` : ''))).join('');
  return (
    <svg
      class="qr"
      viewBox={`0 0 ${size} ${size}`}
      role="img"
      aria-label={label}
      shape-rendering="crispEdges"
    >
      <rect width={size} height={size} fill="#fff" />
      <path d={path} fill="#000" />
    </svg>
  );
}

function RecoveryCodes({
  codes,
  onClose,
}: {
  readonly codes: readonly string[];
  readonly onClose: () => void;
}) {
  return (
    <SecretDialog
      title="Recovery codes"
      secret={codes.join('\n')}
      label="Copy the recovery codes"
      onClose={onClose}
    >
      <p>Each code works for one login without your second factor. Keep them apart from your password.</p>
    </SecretDialog>
  );
}
