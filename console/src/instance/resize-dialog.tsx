/** Resizes an instance whose VM is on: asks once, stops it, resizes, and starts it again if it ran. */
import type { Instance } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { mebibytes } from '../format.ts';
import { putInstance, refreshSoon } from '../live/instances.ts';
import { ConfirmDialog } from '../ui/confirm-dialog.tsx';
import { tell } from '../ui/toasts.tsx';
import type { Size } from './instance-form.tsx';
import { stopNotice, whileStopped } from './while-stopped.ts';

interface Props {
  readonly instance: Instance;
  readonly size: Size;
  readonly onClose: () => void;
}

export function ResizeDialog({ instance, size, onClose }: Props) {
  const { id, name } = instance;
  const words = `${size.cpus} cpu, ${mebibytes(size.memory_mib)} memory, ${size.disk_gib} GiB disk`;
  const work = async () => {
    await whileStopped(instance, async () =>
      putInstance(await call('changeInstance', { path: { id }, body: { ...size } })),
    );
    refreshSoon();
    tell('good', `Resized ${name}: ${words}.`);
  };
  return (
    <ConfirmDialog title={`Resize ${name}`} verb="Stop and resize" harmless onClose={onClose} work={work}>
      <p class="notice">{stopNotice(instance)}</p>
      <p>The new size: {words}. The other settings are saved already.</p>
    </ConfirmDialog>
  );
}
