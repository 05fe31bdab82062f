/** Restores a generation; a running VM is stopped for it, and started again. */
import type { Generation, Instance } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { exactly } from '../format.ts';
import { putInstance } from '../live/instances.ts';
import { ConfirmDialog } from '../ui/confirm-dialog.tsx';
import { tell } from '../ui/toasts.tsx';
import { stopNotice, whileStopped } from './while-stopped.ts';

interface Props {
  readonly instance: Instance;
  readonly generation: Generation;
  readonly onClose: () => void;
}

export function RestoreDialog({ instance, generation, onClose }: Props) {
  const { generation: number, created_at } = generation;
  const notice = stopNotice(instance);
  const work = async () => {
    const body = { generation: number };
    const restored = await whileStopped(instance, () =>
      call('restoreInstance', { path: { id: instance.id }, body }),
    );
    if (notice === null) putInstance(restored);
    tell(
      'good',
      `Restored generation ${number} of ${instance.name}, as generation ${restored.disk.generation}.`,
    );
  };
  return (
    <ConfirmDialog
      title={`Restore generation ${number}`}
      verb={notice === null ? 'Restore' : 'Stop and restore'}
      harmless
      onClose={onClose}
      work={work}
    >
      {notice !== null && <p class="notice">{notice}</p>}
      <p>
        The disk gets the files of generation {number}, saved {exactly(created_at)}, as a new generation.
        Nothing is lost: the current files are{' '}
        {notice === null
          ? `kept as generation ${instance.disk.generation}`
          : 'saved first, as a generation of their own'}
        .
      </p>
    </ConfirmDialog>
  );
}
