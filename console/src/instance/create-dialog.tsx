/** A new instance, in one dialog: what most want on top, the rest folded away with its defaults. */
import { useState } from 'preact/hooks';
import type { CreateInstanceRequest } from '../../../client/src/berth.ts';
import { call, sayError } from '../api.ts';
import { putInstance, putVm } from '../live/instances.ts';
import { navigate } from '../router.ts';
import { Button } from '../ui/button.tsx';
import { Dialog, DialogActions } from '../ui/dialog.tsx';
import { Failure } from '../ui/failure.tsx';
import { Checkbox, Field, Select, TextArea } from '../ui/field.tsx';
import { tell } from '../ui/toasts.tsx';
import { useAction } from '../use-action.ts';
import { useQuery } from '../use-query.ts';
import {
  LabelsField,
  readLabels,
  readSettings,
  readSize,
  SettingsFields,
  SizeFields,
} from './instance-form.tsx';
import { chosenKeys, KeyChoice } from './key-choice.tsx';

function readForm(form: FormData): CreateInstanceRequest {
  const user_data = String(form.get('user_data'));
  return {
    name: String(form.get('name')).trim(),
    image: String(form.get('image')),
    ...readSize(form),
    ...readSettings(form),
    labels: readLabels(String(form.get('labels'))),
    ...(user_data.trim() === '' ? {} : { user_data }),
  };
}

export function CreateDialog({ onClose }: { readonly onClose: () => void }) {
  const images = useQuery('images', () => call('listImages', {}));
  const keys = useQuery('keys', () => call('listSshKeys', {}));
  const [explicit, setExplicit] = useState(false);
  const action = useAction(async (form: FormData) => {
    const instance = await call('createInstance', { body: readForm(form) });
    putInstance(instance);
    const path = { id: instance.id };
    try {
      if (explicit) await call('replaceKeySet', { path, body: { ssh_key_ids: chosenKeys(form) } });
      if (form.get('start') !== null) putVm(await call('startVm', { path }));
    } catch (error) {
      // It is there; to ask for it again would only say that its name is taken.
      tell('bad', `${instance.name} is made, but: ${sayError(error)}`);
    }
    navigate(`/instances/${instance.name}`);
  });
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    if (await action.run(new FormData(event.currentTarget as HTMLFormElement))) onClose();
  };
  const no_keys = keys.data?.data.length === 0;
  const { issues } = action;
  return (
    <Dialog title="New instance" onClose={onClose} wide>
      <form onSubmit={submit}>
        <div class="dialog-body">
          <div class="columns">
            <Field
              label="Name"
              name="name"
              required
              autofocus
              autocomplete="off"
              spellcheck={false}
              maxLength={63}
              pattern="[a-z0-9]([a-z0-9\-]*[a-z0-9])?"
              title="Small letters, digits and hyphens"
              placeholder="web"
              issue={issues['name']}
            />
            <Select label="Image" name="image" issue={issues['image']}>
              {(images.data?.data ?? [{ id: 'debian-12' }]).map(({ id }) => (
                <option key={id} value={id}>
                  {id}
                </option>
              ))}
            </Select>
          </div>
          <SizeFields issues={issues} />
          {no_keys && (
            <p class="notice">
              Your account has no SSH key yet, so nobody could log in. <a href="/ssh-keys">Add one</a> now or
              later: it reaches the guest within seconds.
            </p>
          )}
          <details>
            <summary>Keys, flush, idle stop, wake, labels, user data</summary>
            <div class="dialog-part">
              <KeyChoice explicit={explicit} onChange={setExplicit} />
              <SettingsFields issues={issues} />
              <LabelsField issue={issues['labels']} />
              <TextArea
                label="User data"
                name="user_data"
                rows={4}
                spellcheck={false}
                placeholder={'#!/bin/sh\napt-get install -y nginx'}
                hint="A script that root runs once, at the first boot"
                issue={issues['user_data']}
              />
            </div>
          </details>
          <Checkbox label="Start its VM at once" name="start" defaultChecked />
          <Failure text={action.error} />
        </div>
        <DialogActions>
          <Button onClick={onClose}>Cancel</Button>
          <Button submit kind="primary" busy={action.busy}>
            Create
          </Button>
        </DialogActions>
      </form>
    </Dialog>
  );
}
