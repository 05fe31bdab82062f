import type { WebhookDelivery } from '../../../client/src/berth.ts';

const STATES = { pending: 'starting', delivered: 'running', failed: 'failed' } as const;

export function DeliveryStatus({ status }: Pick<WebhookDelivery, 'status'>) {
  return (
    <span class={`state ${STATES[status]}`}>
      <span class="dot" aria-hidden="true" />
      {status}
    </span>
  );
}
