/** Shows the receipt of a flush. The user can name or pin the generation that the flush saved. */
import type { Instance } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { bytes, exactly } from '../format.ts';
import { works } from '../live/membership.ts';
import { Checkbox, Field } from '../ui/field.tsx';
import { Form } from '../ui/form.tsx';
import { Icon } from '../ui/icon.tsx';
import { tell } from '../ui/toasts.tsx';
import { dropReceipt, receipts } from './actions.tsx';
import { CONSISTENCY } from './state.tsx';

export function Receipt({ instance }: { readonly instance: Instance }) {
  const receipt = receipts.value.get(instance.id);
  if (!receipt) return null;
  const { generation, durable_at, dirty_bytes, uploaded_bytes, duration_ms, consistency } = receipt;
  return (
    <section class="receipt" aria-label="Flush receipt" role="status">
      <header>
        <Icon name="check" />
        <h2>
          {dirty_bytes === 0
            ? `All saved already, as generation ${generation}`
            : `Saved as generation ${generation}`}
        </h2>
        <button
          type="button"
          class="icon-button"
          aria-label="Close the receipt"
          onClick={() => dropReceipt(instance.id)}
        >
          <Icon name="close" />
        </button>
      </header>
      <dl class="facts">
        <div>
          <dt>Saved at</dt>
          <dd>{durable_at === null ? 'nothing was ever written' : exactly(durable_at)}</dd>
        </div>
        <div>
          <dt>Saved</dt>
          <dd>{bytes(dirty_bytes)}</dd>
        </div>
        <div>
          <dt>Uploaded, compressed</dt>
          <dd>{bytes(uploaded_bytes)}</dd>
        </div>
        <div>
          <dt>Took</dt>
          <dd>{(duration_ms / 1000).toFixed(2)} s</dd>
        </div>
        <div class="wide">
          <dt>State of the files</dt>
          <dd>{CONSISTENCY[consistency].long}</dd>
        </div>
      </dl>
      {generation > 0 && works() && <KeepForm key={generation} instance={instance} generation={generation} />}
    </section>
  );
}

/** Names or pins what was just saved. */
function KeepForm({
  instance: { id },
  generation,
}: {
  readonly instance: Instance;
  readonly generation: number;
}) {
  const work = async (form: FormData) => {
    const name = String(form.get('name')).trim();
    const pinned = form.get('pinned') !== null;
    if (name === '' && !pinned) throw new Error('Enter a name, or choose Pin.');
    const body = { ...(name === '' ? {} : { name }), ...(pinned ? { pinned } : {}) };
    await call('changeGeneration', { path: { id, generation: String(generation) }, body });
    dropReceipt(id);
    tell(
      'good',
      `Generation ${generation} is ${name === '' ? 'pinned' : `named ${name}${pinned ? ', and pinned' : ''}`}.`,
    );
  };
  return (
    <Form class="keep-form" verb="Save" work={work}>
      <Field label="Name of this generation" name="name" maxLength={100} placeholder="before the upgrade" />
      <Checkbox label="Pin: keep it, however old it gets" name="pinned" />
    </Form>
  );
}
