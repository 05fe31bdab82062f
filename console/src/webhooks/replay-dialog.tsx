/** Sends the events since a time again, also those that a disabled webhook missed. */
import type { Webhook } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { plural } from '../format.ts';
import { Select } from '../ui/field.tsx';
import { FormDialog } from '../ui/form.tsx';
import { tell } from '../ui/toasts.tsx';

interface Props {
  readonly webhook: Webhook;
  readonly onClose: () => void;
  readonly onSent: () => void;
}

const HOUR_MS = 3_600_000;
const RANGES: readonly (readonly [hours: number, label: string])[] = [
  [1, 'The last hour'],
  [24, 'The last 24 hours'],
  [7 * 24, 'The last 7 days'],
  [26 * 24, 'The last 26 days'],
];

export function ReplayDialog({ webhook: { id, name }, onClose, onSent }: Props) {
  const send = async (form: FormData) => {
    const since = new Date(Date.now() - Number(form.get('hours')) * HOUR_MS).toISOString();
    const { count } = await call('replayWebhook', { path: { id }, body: { since } });
    tell('good', count === 0 ? 'There is no event to send.' : `Sending ${plural(count, 'event')} again.`);
    onSent();
  };
  return (
    <FormDialog title={`Replay events to ${name}`} verb="Replay" onClose={onClose} work={send}>
      {(issues) => (
        <>
          <p>
            Sends every event of the chosen time again that this webhook asks for, in order, also those that
            it missed while it was disabled. Your server recognises repeated events by their webhook-id.
          </p>
          <Select label="Events of" name="hours" defaultValue="24" issue={issues['since']}>
            {RANGES.map(([hours, label]) => (
              <option key={hours} value={hours}>
                {label}
              </option>
            ))}
          </Select>
        </>
      )}
    </FormDialog>
  );
}
