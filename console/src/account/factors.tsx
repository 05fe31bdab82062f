/** Second factors: an authenticator app, passkeys, and the recovery codes for when both are away. */
import { useState } from 'preact/hooks';
import type { MfaFactor } from '../../../client/src/generated.ts';
import { call } from '../api.ts';
import { createPasskey, passkeyProblem } from '../passkeys.ts';
import { user } from '../session.ts';
import { Button } from '../ui/button.tsx';
import { ConfirmDialog } from '../ui/confirm-dialog.tsx';
import { Failure } from '../ui/failure.tsx';
import { Icon } from '../ui/icon.tsx';
import { Loaded, Section } from '../ui/page.tsx';
import { Time } from '../ui/time.tsx';
import { useAction } from '../use-action.ts';
import { useList } from '../use-list.ts';
import { EnrolTotp } from './enrol-totp.tsx';
import { RecoveryCodes } from './recovery-codes.tsx';

const KINDS = { totp: 'authenticator app', webauthn: 'passkey' } as const;

export function Factors() {
  const [enrolling, setEnrolling] = useState(false);
  const [removed, setRemoved] = useState<MfaFactor | null>(null);
  const [codes, setCodes] = useState<readonly string[] | null>(null);
  const list = useList('factors', (cursor) =>
    call('listMfaFactors', { query: cursor === undefined ? {} : { cursor } }),
  );
  const problem = passkeyProblem();
  const confirmed = async (recovery_codes: readonly string[] | null) => {
    setCodes(recovery_codes);
    user.value = await call('getMe', {});
    await list.reload();
  };
  const passkey = useAction(async () => {
    const added = await call('addMfaFactor', { body: { type: 'webauthn', name: nameOfToday() } });
    if (added.type !== 'webauthn') return;
    const body = (await createPasskey(added.options)) as never;
    await confirmed((await call('verifyMfaFactor', { path: { id: added.id }, body })).recovery_codes);
  });
  return (
    <Section
      title="Second factors"
      lead="With one, the password alone opens nothing. A passkey can also log in by itself."
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
      <Loaded query={list} lines={2}>
        {(factors) => (
          <Table
            factors={factors.filter(({ confirmed_at }) => confirmed_at !== null)}
            onRemove={setRemoved}
          />
        )}
      </Loaded>
      {enrolling && <EnrolTotp onClose={() => setEnrolling(false)} onConfirmed={confirmed} />}
      {removed && (
        <ConfirmDialog
          title={`Remove ${removed.name}`}
          verb="Remove"
          onClose={() => setRemoved(null)}
          work={async () => {
            await call('removeMfaFactor', { path: { id: removed.id } });
            await confirmed(null);
          }}
        >
          <p>It cannot be used to log in any more. With the last factor the recovery codes go too.</p>
        </ConfirmDialog>
      )}
      {codes && <RecoveryCodes codes={codes} onClose={() => setCodes(null)} />}
    </Section>
  );
}

function nameOfToday(): string {
  return `passkey of ${new Date().toISOString().slice(0, 10)}`;
}

function Table({
  factors,
  onRemove,
}: {
  readonly factors: readonly MfaFactor[];
  readonly onRemove: (factor: MfaFactor) => void;
}) {
  if (factors.length === 0) {
    return (
      <p class="panel notice">
        None yet: whoever learns your password is in. Add an authenticator app or a passkey.
      </p>
    );
  }
  return (
    <table class="table">
      <thead>
        <tr>
          <th>Name</th>
          <th>Kind</th>
          <th class="wide-only">Last used</th>
          <th class="end">
            <span class="hidden">Actions</span>
          </th>
        </tr>
      </thead>
      <tbody>
        {factors.map((factor) => (
          <tr key={factor.id}>
            <td>{factor.name}</td>
            <td>{KINDS[factor.type]}</td>
            <td class="wide-only nowrap">
              <Time at={factor.last_used_at} />
            </td>
            <td class="end">
              <Button
                small
                kind="quiet"
                aria-label={`Remove ${factor.name}`}
                onClick={() => onRemove(factor)}
              >
                Remove
              </Button>
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
