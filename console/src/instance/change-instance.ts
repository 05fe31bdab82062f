/** Changes of an instance that replace nothing unseen. */
import { useRef, useState } from 'preact/hooks';
import type { ChangeInstanceRequest, Instance } from '../../../client/src/generated.ts';
import { call } from '../api.ts';
import { putInstance } from '../live/instances.ts';
import { readThenChange, requireSeen } from '../read-then-change.ts';

export function changeNow(id: string, changeOf: (now: Instance) => ChangeInstanceRequest): Promise<Instance> {
  const path = { id };
  return readThenChange(
    (options) => call('getInstance', { path }, options),
    (now, options) => call('changeInstance', { path, body: changeOf(now) }, options),
  );
}

interface InstanceForm {
  /** What the form shows: the live instance until an edit, then the instance as it was. */
  readonly shown: Instance;
  readonly onEdited: (is_edited: boolean) => void;
  /** @throws Error if somebody else has changed what this replaces; then `shown` is the present instance */
  readonly change: (body: ChangeInstanceRequest) => Promise<Instance>;
}

export function useInstanceForm(live: Instance): InstanceForm {
  const [edited, setEdited] = useState(false);
  const shown = useRef(live);
  if (!edited) shown.current = live;
  const change = (body: ChangeInstanceRequest) =>
    changeNow(live.id, (now) => {
      requireSeen(now, shown.current, body, () => {
        shown.current = now;
        putInstance(now);
      });
      return body;
    });
  return { shown: shown.current, onEdited: setEdited, change };
}
