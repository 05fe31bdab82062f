import { SecretDialog } from '../ui/secret-dialog.tsx';

export function RecoveryCodes({
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
      <p>Each is good for one login when your second factor is away. Keep them where your password is not.</p>
    </SecretDialog>
  );
}
