import type { WebhookDelivery } from '../../../client/src/berth.ts';

/** `vm.started web` */
export function aboutOf({ event_type, event_id, resource }: WebhookDelivery): string {
  return [event_type ?? event_id, resource?.name].filter(Boolean).join(' ');
}

/** The type of a delivery's event and what the event is about: `vm.started` of web. */
export function DeliveryEvent({ delivery }: { readonly delivery: WebhookDelivery }) {
  const { event_type, resource } = delivery;
  if (event_type === null) return <span class="dim">expired, after 30 days</span>;
  return (
    <>
      <code>{event_type}</code>
      {resource !== null && (
        <div class="wrap" title={resource.id}>
          {resource.name ?? resource.id}
        </div>
      )}
    </>
  );
}
