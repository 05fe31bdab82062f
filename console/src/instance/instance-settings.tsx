/**
 * The Settings tab of an instance: changes its settings and size, and deletes it. Other CPUs or memory need a stopped
 * VM, so a dialog asks before it stops the VM.
 */
import { useState } from 'preact/hooks';
import type { ChangeInstanceRequest, Instance } from '../../../client/src/generated.ts';
import { call } from '../api.ts';
import { mebibytes, plural } from '../format.ts';
import { putInstance, refreshSoon } from '../live/instances.ts';
import { navigate } from '../router.ts';
import { Button } from '../ui/button.tsx';
import { Field } from '../ui/field.tsx';
import { ConfirmDialog, Form } from '../ui/form.tsx';
import { Section } from '../ui/page.tsx';
import { tell } from '../ui/toasts.tsx';
import { whyFixed } from './actions.tsx';
import { changeCommands, changedFields } from './as-commands.ts';
import { stopNotice, useInstanceForm, whileStopped } from './change-instance.ts';
import { CommandView } from './command-view.tsx';
import {
  isMachine,
  LabelsField,
  labelsText,
  readLabels,
  readSettings,
  readSize,
  SettingsFields,
  type Size,
  SizeFields,
} from './instance-form.tsx';

/** Its CPUs and memory. The disk grows at any time. */
const isFixed = ({ vm }: Instance) => vm.state !== 'stopped';

/** What differs from the instance: the audit log names what was sent, and others may change the rest meanwhile. */
function readChanges(form: FormData, instance: Instance): ChangeInstanceRequest {
  return changedFields(readForm(form, instance), instance);
}

function readForm(form: FormData, instance: Instance): ChangeInstanceRequest {
  const labels = String(form.get('labels'));
  return {
    name: String(form.get('name')).trim(),
    // Sent only if they were changed: this text cannot represent a value with a comma.
    ...(labels === labelsText(instance.labels) ? {} : { labels: readLabels(labels) }),
    ...readSettings(form),
    generations_keep: { last: Number(form.get('last')), daily_days: Number(form.get('daily_days')) },
    ...(isFixed(instance) ? { disk_gib: readSize(form).disk_gib } : readSize(form)),
  };
}

function growthWords({ disk_gib, disk }: Instance, before: Instance): string[] {
  if (disk_gib === before.disk_gib) return [];
  if (disk.growth === 'done') return [`The root file system has grown to ${disk_gib} GiB.`];
  return [`The root file system grows to ${disk_gib} GiB when the guest boots.`];
}

interface Resize {
  readonly settings: ChangeInstanceRequest;
  readonly size: Size;
  readonly form: HTMLFormElement;
}

export function InstanceSettings({ instance }: { readonly instance: Instance }) {
  const [deleting, setDeleting] = useState(false);
  /** The change that waits for the consent to stop the VM, and the form that holds it. */
  const [resize, setResize] = useState<Resize | null>(null);
  const { shown, onEdited, change } = useInstanceForm(instance);
  const { name, vm } = instance;
  const work = async (form: FormData, element: HTMLFormElement) => {
    const body = readChanges(form, shown);
    const size = readSize(form);
    if (isFixed(shown) && !isMachine(shown, size)) {
      const { disk_gib: _, ...settings } = body;
      setResize({ settings, size, form: element });
      return;
    }
    const changed = Object.keys(body).length === 0 ? instance : await change(body);
    putInstance(changed);
    // Saved values are no longer edits: from now on the fields follow the live state.
    element.reset();
    tell('good', ['Saved.', ...growthWords(changed, shown)].join(' '));
    if (changed.name !== name) navigate(`/instances/${changed.name}/settings`, { replace: true });
  };
  return (
    <>
      <Section title="Settings">
        <Form
          class="panel stack"
          verb="Save"
          primary
          reason={whyFixed(instance)}
          edits
          onEdited={onEdited}
          work={work}
        >
          <Field
            label="Name"
            name="name"
            required
            defaultValue={shown.name}
            spellcheck={false}
            autocomplete="off"
          />
          <SizeFields of={shown} />
          <p class="hint">
            {vm.state === 'stopped'
              ? 'The next start has the new size. A disk only grows.'
              : 'Other CPUs or memory need a stopped VM: you are asked before it is stopped. The disk grows at once; it only grows.'}
          </p>
          <SettingsFields of={shown} />
          <LabelsField of={shown.labels} />
          <KeptFields keep={shown.generations_keep} />
          <CommandView
            of={(form) =>
              changeCommands(shown, { ...readForm(form, shown), ...readSize(form) }, location.origin)
            }
          />
        </Form>
      </Section>
      <Section
        title="Delete"
        lead="Deletes the VM, the disk, all its generations and its encryption key. Forks are kept."
      >
        <Button kind="danger" reason={whyFixed(instance)} onClick={() => setDeleting(true)}>
          Delete {name}
        </Button>
      </Section>
      {resize && (
        <ResizeDialog
          instance={instance}
          settings={resize.settings}
          size={resize.size}
          change={change}
          onDone={() => resize.form.reset()}
          onClose={() => setResize(null)}
        />
      )}
      {deleting && <Delete instance={instance} onClose={() => setDeleting(false)} />}
    </>
  );
}

interface KeptProps {
  readonly keep: Instance['generations_keep'];
}

function KeptFields({ keep }: KeptProps) {
  const common = { type: 'number', required: true } as const;
  return (
    <div class="columns">
      <Field
        {...common}
        label="Keep the newest generations"
        name="last"
        min={1}
        max={1000}
        defaultValue={keep.last}
      />
      <Field
        {...common}
        label="Then one a day, for days"
        name="daily_days"
        min={0}
        max={365}
        defaultValue={keep.daily_days}
      />
    </div>
  );
}

function Delete({ instance, onClose }: { readonly instance: Instance; readonly onClose: () => void }) {
  const { id, name } = instance;
  const work = async () => {
    putInstance(await call('deleteInstance', { path: { id } }));
    tell('good', `Deleting ${name}.`);
    navigate('/');
  };
  return (
    <ConfirmDialog title={`Delete ${name}`} verb="Delete" word={name} onClose={onClose} work={work}>
      <p>
        This deletes the VM, the disk and all generations of {name}. The files cannot be recovered. Forks keep
        the files that they share with it.
      </p>
    </ConfirmDialog>
  );
}

interface Props {
  readonly instance: Instance;
  /** The other settings, saved before the VM stops. */
  readonly settings: ChangeInstanceRequest;
  readonly size: Size;
  readonly change: (body: ChangeInstanceRequest) => Promise<Instance>;
  readonly onDone: () => void;
  readonly onClose: () => void;
}

/** Saves the settings of an instance whose VM is on, with a new size: asks once, stops it, resizes, starts it again if it ran. */
function ResizeDialog({ instance, settings, size, change, onDone, onClose }: Props) {
  const others = Object.keys(settings).length > 0;
  const words = `${plural(size.cpus, 'CPU')}, ${mebibytes(size.memory_mib)} memory, ${size.disk_gib} GiB disk`;
  const work = async () => {
    const { name } = others ? await change(settings) : instance;
    await whileStopped(instance, async () => putInstance(await change({ ...size })));
    refreshSoon();
    onDone();
    if (name !== instance.name) navigate(`/instances/${name}/settings`, { replace: true });
    tell('good', `Resized ${name}: ${words}.`);
  };
  return (
    <ConfirmDialog
      title={`Resize ${instance.name}`}
      verb="Stop and resize"
      harmless
      onClose={onClose}
      work={work}
    >
      <p class="notice">{stopNotice(instance)}</p>
      <p>
        The new size: {words}.{others && ' The other changed settings are saved too, at once.'}
      </p>
    </ConfirmDialog>
  );
}
