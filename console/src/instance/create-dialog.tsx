/** The dialog that creates an instance. Common fields are on top; the others are folded and have defaults. */
import { signal } from '@preact/signals';
import { useState } from 'preact/hooks';
import type { CreateInstanceRequest } from '../../../client/src/berth.ts';
import { call, sayError } from '../api.ts';
import { putInstance, putVm } from '../live/instances.ts';
import { navigate } from '../router.ts';
import { Checkbox, Select, TextArea } from '../ui/field.tsx';
import { FormDialog } from '../ui/form.tsx';
import { tell } from '../ui/toasts.tsx';
import { useQuery } from '../use-query.ts';
import { createCommands } from './as-commands.ts';
import { CommandView, newName } from './command-view.tsx';
import { EgressFields, readEgress } from './egress.tsx';
import {
  LabelsField,
  NewNameField,
  readLabels,
  readSettings,
  readSize,
  SettingsFields,
  SizeFields,
} from './instance-form.tsx';
import { chosenKeys, KeyChoice } from './ssh-keys.tsx';

/** Whether the page of instances shows this dialog. The command palette sets it too. */
export const is_creating = signal(false);

function readForm(form: FormData): CreateInstanceRequest {
  const user_data = String(form.get('user_data'));
  return {
    name: String(form.get('name')).trim(),
    image: String(form.get('image')),
    ...readSize(form),
    ...readSettings(form),
    egress: readEgress(form),
    labels: readLabels(String(form.get('labels'))),
    ...(user_data.trim() === '' ? {} : { user_data }),
  };
}

function commandsOf(form: FormData, explicit: boolean) {
  const body = { ...readForm(form), name: newName(form) };
  const ssh_key_ids = explicit ? chosenKeys(form) : null;
  return createCommands({ body, ssh_key_ids, start: form.get('start') !== null }, location.origin);
}

export function CreateDialog({ onClose }: { readonly onClose: () => void }) {
  const images = useQuery('images', () => call('listImages', {}));
  const keys = useQuery('keys', () => call('listSshKeys', {}));
  const [explicit, setExplicit] = useState(false);
  const work = async (form: FormData) => {
    const instance = await call('createInstance', { body: readForm(form) });
    putInstance(instance);
    const path = { id: instance.id };
    try {
      if (explicit) await call('replaceKeySet', { path, body: { ssh_key_ids: chosenKeys(form) } });
      if (form.get('start') !== null) putVm(await call('startVm', { path }));
    } catch (error) {
      // The instance exists. A retry would only fail because its name is taken.
      tell('bad', `Created ${instance.name}, but: ${sayError(error)}`);
    }
    navigate(`/instances/${instance.name}`);
  };
  const no_keys = keys.data?.data.length === 0;
  return (
    <FormDialog title="New instance" verb="Create" onClose={onClose} work={work} wide>
      <div class="columns">
        <NewNameField placeholder="web" />
        <Select label="Image" name="image">
          {(images.data?.data ?? [{ id: 'debian-12' }]).map(({ id }) => (
            <option key={id} value={id}>
              {id}
            </option>
          ))}
        </Select>
      </div>
      <SizeFields />
      {no_keys && (
        <p class="notice">
          Your account has no SSH key yet, so nobody can log in. <a href="/ssh-keys">Add one</a> now or later:
          the instance accepts it within seconds.
        </p>
      )}
      <details>
        <summary>More: keys, flush, idle stop, wake, restart, egress, labels, user data</summary>
        <div class="dialog-part">
          <KeyChoice explicit={explicit} onChange={setExplicit} />
          <SettingsFields />
          <EgressFields />
          <LabelsField />
          <TextArea
            label="User data"
            name="user_data"
            rows={4}
            spellcheck={false}
            placeholder={'#!/bin/sh\napt-get install -y nginx'}
            hint="A script that root runs once, at the first boot"
          />
        </div>
      </details>
      <Checkbox label="Start it now" name="start" defaultChecked />
      <CommandView of={(form) => commandsOf(form, explicit)} />
    </FormDialog>
  );
}
