/** Creates a webhook, or edits one. */
import { useState } from 'preact/hooks';
import type { CreateWebhookRequest, Webhook } from '../../../client/src/berth.ts';
import { Field } from '../ui/field.tsx';
import { FormDialog } from '../ui/form.tsx';
import { EVENT_GROUPS } from './event-types.ts';

interface Props {
  readonly of?: Webhook;
  readonly onClose: () => void;
  readonly work: (body: CreateWebhookRequest) => Promise<void>;
}

export function WebhookDialog({ of, onClose, work }: Props) {
  const [all, setAll] = useState(of === undefined || of.events.includes('*'));
  const send = async (form: FormData) => {
    const chosen = form.getAll('event') as CreateWebhookRequest['events'];
    const events: CreateWebhookRequest['events'] = all ? ['*'] : chosen;
    await work({ name: String(form.get('name')).trim(), url: String(form.get('url')).trim(), events });
  };
  return (
    <FormDialog
      title={of ? `Edit ${of.name}` : 'New webhook'}
      verb={of ? 'Save' : 'Create webhook'}
      onClose={onClose}
      work={send}
      wide
    >
      {(issues) => (
        <>
          <Field
            label="Name"
            name="name"
            required
            autofocus
            maxLength={100}
            defaultValue={of?.name ?? ''}
            placeholder="deploy bot"
            issue={issues['name']}
          />
          <Field
            label="URL"
            name="url"
            type="url"
            required
            maxLength={2048}
            defaultValue={of?.url ?? ''}
            placeholder="https://hooks.example.org/berth"
            hint="An https URL with a public address"
            issue={issues['url']}
          />
          <fieldset class="choice">
            <legend>Events</legend>
            <label>
              <input type="radio" name="which" checked={all} onChange={() => setAll(true)} />
              <span>All types, also future ones</span>
            </label>
            <label>
              <input type="radio" name="which" checked={!all} onChange={() => setAll(false)} />
              <span>Only these types</span>
            </label>
            {!all && (
              <div class="event-groups">
                {EVENT_GROUPS.map(({ name, types }) => (
                  <fieldset key={name}>
                    <legend>{name}</legend>
                    {types.map((type) => (
                      <label key={type}>
                        <input
                          type="checkbox"
                          name="event"
                          value={type}
                          defaultChecked={of?.events.includes(type) ?? false}
                        />
                        <code>{type}</code>
                      </label>
                    ))}
                  </fieldset>
                ))}
              </div>
            )}
            {issues['events'] !== undefined && <p class="issue">{issues['events']}</p>}
          </fieldset>
        </>
      )}
    </FormDialog>
  );
}
