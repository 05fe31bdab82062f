/** Second factors: authenticator apps, passkeys, and recovery codes in case those are lost. */
import { useState } from 'preact/hooks';
import { call } from '../api.ts';
import { createPasskey, passkeyProblem } from '../passkeys.ts';
import { user } from '../session.ts';
import { Button } from '../ui/button.tsx';
import { Failure } from '../ui/failure.tsx';
import { Icon } from '../ui/icon.tsx';
import { ListTable } from '../ui/loaded-list.tsx';
import { Section } from '../ui/page.tsx';
import { Time } from '../ui/time.tsx';
import { useAction } from '../use-action.ts';
import { useList } from '../use-list.ts';
import { EnrolTotp } from './enrol-totp.tsx';
import { RecoveryCodes } from './recovery-codes.tsx';

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
