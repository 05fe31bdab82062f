import type { Webhook } from '../../../client/src/berth.ts';

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
