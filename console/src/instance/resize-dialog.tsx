/** Saves the settings of an instance whose VM is on, with a new size: asks once, stops it, resizes, starts it again if it ran. */
import type { ChangeInstanceRequest, Instance } from '../../../client/src/generated.ts';
import { mebibytes, plural } from '../format.ts';
import { putInstance, refreshSoon } from '../live/instances.ts';
import { navigate } from '../router.ts';
import { ConfirmDialog } from '../ui/confirm-dialog.tsx';
import { tell } from '../ui/toasts.tsx';
import type { Size } from './instance-form.tsx';
import { stopNotice, whileStopped } from './while-stopped.ts';

interface Props {
  readonly instance: Instance;
  /** The other settings, saved before the VM stops. */
  readonly settings: ChangeInstanceRequest;
  readonly size: Size;
  readonly change: (body: ChangeInstanceRequest) => Promise<Instance>;
  readonly onDone: () => void;
  readonly onClose: () => void;
}

export function ResizeDialog({ instance, settings, size, change, onDone, onClose }: Props) {
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
