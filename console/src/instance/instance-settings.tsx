/** Changing an instance, and deleting it. */
import { useState } from 'preact/hooks';
import type { Instance } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { putInstance } from '../live/instances.ts';
import { works } from '../live/membership.ts';
import { navigate } from '../router.ts';
import { Button } from '../ui/button.tsx';
import { ConfirmDialog } from '../ui/confirm-dialog.tsx';
import { Failure } from '../ui/failure.tsx';
import { Field } from '../ui/field.tsx';
import { Section } from '../ui/page.tsx';
import { tell } from '../ui/toasts.tsx';
import { useAction } from '../use-action.ts';
import {
  LabelsField,
  readLabels,
  readSettings,
  readSize,
  SettingsFields,
  SizeFields,
} from './instance-form.tsx';

export function InstanceSettings({ instance }: { readonly instance: Instance }) {
  const [deleting, setDeleting] = useState(false);
  const { id, name, vm, generations_keep: keep } = instance;
  const fixed = vm.state !== 'stopped';
  const action = useAction(async (form: FormData) => {
    const body = {
      name: String(form.get('name')).trim(),
      labels: readLabels(String(form.get('labels'))),
      ...readSettings(form),
      generations_keep: { last: Number(form.get('last')), daily_days: Number(form.get('daily_days')) },
      ...(fixed ? {} : readSize(form)),
    };
    const changed = await call('changeInstance', { path: { id }, body });
    putInstance(changed);
    tell('good', 'Saved.');
    navigate(`/instances/${changed.name}/settings`, { replace: true });
  });
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    void action.run(new FormData(event.currentTarget as HTMLFormElement));
  };
  const { issues } = action;
  return (
    <>
      <Section title="Settings">
        <form class="panel stack" onSubmit={submit}>
          <Field
            label="Name"
            name="name"
            required
            defaultValue={name}
            spellcheck={false}
            autocomplete="off"
            issue={issues['name']}
          />
          <SizeFields of={instance} issues={issues} fixed={fixed} />
          <p class="hint">
            {fixed
              ? 'Size changes while the VM is stopped.'
              : 'The next start has the new size. A disk only grows.'}
          </p>
          <SettingsFields of={instance} issues={issues} />
          <LabelsField of={instance.labels} issue={issues['labels']} />
          <div class="columns">
            <Field
              label="Keep the newest generations"
              name="last"
              type="number"
              min={1}
              required
              defaultValue={keep.last}
              issue={issues['generations_keep.last']}
            />
            <Field
              label="Then one a day, days"
              name="daily_days"
              type="number"
              min={0}
              required
              defaultValue={keep.daily_days}
              issue={issues['generations_keep.daily_days']}
            />
          </div>
          <Failure text={action.error} />
          <div>
            <Button submit kind="primary" busy={action.busy} disabled={!works() || instance.deleting}>
              Save
            </Button>
          </div>
        </form>
      </Section>
      <Section
        title="Delete"
        lead="The VM ends and the disk goes, with all its generations and the key it was encrypted with. Forks keep theirs."
      >
        <Button kind="danger" disabled={!works() || instance.deleting} onClick={() => setDeleting(true)}>
          Delete {name}
        </Button>
      </Section>
      {deleting && <Delete instance={instance} onClose={() => setDeleting(false)} />}
    </>
  );
}

function Delete({ instance, onClose }: { readonly instance: Instance; readonly onClose: () => void }) {
  const { id, name } = instance;
  const work = async () => {
    putInstance(await call('deleteInstance', { path: { id } }));
    tell('good', `${name} is being deleted.`);
    navigate('/');
  };
  return (
    <ConfirmDialog title={`Delete ${name}`} verb="Delete for ever" word={name} onClose={onClose} work={work}>
      <p>Its files cannot be brought back. What a fork shares with it stays in the fork.</p>
    </ConfirmDialog>
  );
}
