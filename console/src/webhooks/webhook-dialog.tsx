/**
 * The dialog that creates or changes a webhook. Also exports a webhook's status in words, and the event types that a
 * webhook can subscribe to.
 */
import { useState } from 'preact/hooks';
import type { CreateWebhookRequest, EventType, Webhook } from '../../../client/src/berth.ts';
import { Field, GroupIssue } from '../ui/field.tsx';
import { FormDialog } from '../ui/form.tsx';

interface Props {
  readonly of?: Webhook;
  readonly onClose: () => void;
  readonly work: (body: CreateWebhookRequest) => Promise<void>;
}

/** Creates a webhook, or edits one. */
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
      <Field
        label="Name"
        name="name"
        required
        autofocus
        maxLength={100}
        defaultValue={of?.name ?? ''}
        placeholder="deploy bot"
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
        <GroupIssue name="events" />
      </fieldset>
    </FormDialog>
  );
}

export function WebhookStatus({ webhook }: { readonly webhook: Webhook }) {
  const { status, failing_since, disabled_reason } = webhook;
  if (status === 'disabled') {
    return (
      <span class="state failed" title={disabled_reason ?? undefined}>
        <span class="dot" aria-hidden="true" />
        disabled
      </span>
    );
  }
  return (
    <span class={failing_since === null ? 'state running' : 'state suspended'}>
      <span class="dot" aria-hidden="true" />
      {failing_since === null ? 'enabled' : 'failing'}
    </span>
  );
}

/** The event types of webhooks (docs/webhooks.md). Typed by the API: an unknown one does not compile. */
export const EVENT_GROUPS: readonly { readonly name: string; readonly types: readonly EventType[] }[] = [
  {
    name: 'Instances',
    types: [
      'instance.created',
      'instance.deleted',
      'instance.forked',
      'instance.restored',
      'instance.ssh_keys_replaced',
    ],
  },
  {
    name: 'VMs',
    types: ['vm.started', 'vm.stopped', 'vm.suspended', 'vm.restarted', 'vm.failed', 'vm.recovered'],
  },
  { name: 'Egress', types: ['egress.denied'] },
  { name: 'Disks', types: ['disk.flushed', 'disk.flush_failed'] },
  { name: 'HTTP ports', types: ['port.created', 'port.changed', 'port.deleted'] },
  {
    name: 'Keys',
    types: ['ssh_key.added', 'ssh_key.revoked', 'api_key.created', 'api_key.rotated', 'api_key.revoked'],
  },
  {
    name: 'Organisation',
    types: ['member.added', 'member.removed', 'member.role_changed', 'webhook.disabled'],
  },
];
