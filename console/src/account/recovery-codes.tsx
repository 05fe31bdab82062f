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
      <p>Each code works for one login without your second factor. Keep them apart from your password.</p>
    </SecretDialog>
  );
}
