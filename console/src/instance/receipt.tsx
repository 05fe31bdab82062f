/** The receipt of a flush. */
import type { Instance } from '../../../client/src/berth.ts';
import { bytes, exactly, plural } from '../format.ts';
import { Icon } from '../ui/icon.tsx';
import { dropReceipt, receipts } from './actions.ts';

const CONSISTENCY = {
  filesystem: 'file systems were frozen for it',
  crash: 'as after a power cut',
  offline: 'the VM was not running',
} as const;

export function Receipt({ instance }: { readonly instance: Instance }) {
  const receipt = receipts.value.get(instance.id);
  if (!receipt) return null;
  const { generation, durable_at, dirty_bytes, uploaded_bytes, segments, duration_ms, consistency } = receipt;
  return (
    <section class="receipt" aria-label="Flush receipt" role="status">
      <header>
        <Icon name="check" />
        <h2>Generation {generation} is durable</h2>
        <button
          type="button"
          class="icon-button"
          aria-label="Put the receipt away"
          onClick={() => dropReceipt(instance.id)}
        >
          <Icon name="close" />
        </button>
      </header>
      <dl class="facts">
        <div>
          <dt>Durable at</dt>
          <dd>{durable_at === null ? 'nothing was ever written' : exactly(durable_at)}</dd>
        </div>
        <div>
          <dt>Was dirty</dt>
          <dd>{bytes(dirty_bytes)}</dd>
        </div>
        <div>
          <dt>Uploaded</dt>
          <dd>
            {bytes(uploaded_bytes)} in {plural(segments, 'segment')}
          </dd>
        </div>
        <div>
          <dt>Took</dt>
          <dd>{(duration_ms / 1000).toFixed(2)} s</dd>
        </div>
        <div class="wide">
          <dt>Consistency</dt>
          <dd>
            {consistency}: {CONSISTENCY[consistency]}
          </dd>
        </div>
      </dl>
    </section>
  );
}
