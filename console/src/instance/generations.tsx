/** A timeline of the disk's generations, newest first. Each can be restored or forked. */
import { useEffect, useState } from 'preact/hooks';
import type { Generation, Instance } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { attempt } from '../attempt.ts';
import { bytes, exactly } from '../format.ts';
import { putInstance } from '../live/instances.ts';
import { works } from '../live/membership.ts';
import { Button } from '../ui/button.tsx';
import { ConfirmDialog } from '../ui/confirm-dialog.tsx';
import { Icon } from '../ui/icon.tsx';
import { LoadedList } from '../ui/loaded-list.tsx';
import { Empty, Section } from '../ui/page.tsx';
import { Time } from '../ui/time.tsx';
import { tell } from '../ui/toasts.tsx';
import { useList } from '../use-list.ts';
import { ForkDialog } from './fork-dialog.tsx';
import { NameDialog } from './name-dialog.tsx';

type Asked = { readonly what: 'restore' | 'fork' | 'name'; readonly generation: Generation } | null;

export function Generations({ instance }: { readonly instance: Instance }) {
  const { id, disk, generations_keep: keep } = instance;
  const [asked, setAsked] = useState<Asked>(null);
  const list = useList(`generations ${id}`, (query) =>
    call('listGenerations', { path: { id }, query: { limit: 50, ...query } }),
  );
  const { reload } = list;
  useEffect(() => void reload(), [disk.generation]);
  const change = async (generation: Generation, body: { pinned?: boolean; name?: string | null }) => {
    await call('changeGeneration', { path: { id, generation: String(generation.generation) }, body });
    await reload();
  };
  const close = () => setAsked(null);
  return (
    <Section
      title="Generations"
      lead={`Every flush is one. Kept are the last ${keep.last}, then one a day for ${keep.daily_days} days, and those that are pinned.${instance.vm.state === 'stopped' ? '' : ' To restore one, stop the VM first.'}`}
    >
      <LoadedList
        list={list}
        empty={
          <Empty icon="flush" title="No generation yet">
            <p>The first comes with the first flush: start the VM, then flush or stop it.</p>
          </Empty>
        }
      >
        {(found) => (
          <ol class="timeline">
            {found.map((each) => (
              <Entry
                key={each.generation}
                generation={each}
                instance={instance}
                onAsk={(what) => setAsked({ what, generation: each })}
                onPin={() => attempt(() => change(each, { pinned: !each.pinned }))}
              />
            ))}
          </ol>
        )}
      </LoadedList>
      {asked?.what === 'fork' && (
        <ForkDialog instance={instance} generation={asked.generation.generation} onClose={close} />
      )}
      {asked?.what === 'name' && (
        <NameDialog
          generation={asked.generation}
          onClose={close}
          work={(name) => change(asked.generation, { name })}
        />
      )}
      {asked?.what === 'restore' && (
        <Restore instance={instance} generation={asked.generation} onClose={close} />
      )}
    </Section>
  );
}

interface EntryProps {
  readonly generation: Generation;
  readonly instance: Instance;
  readonly onAsk: (what: 'restore' | 'fork' | 'name') => void;
  readonly onPin: () => void;
}

function Entry({ generation, instance, onAsk, onPin }: EntryProps) {
  const { generation: number, created_at, bytes: uploaded, consistency, name, pinned } = generation;
  const head = number === instance.disk.generation;
  const stopped = instance.vm.state === 'stopped';
  const fixed = !works() || instance.deleting;
  return (
    <li class={head ? 'head' : ''}>
      <div class="timeline-text">
        <p class="timeline-title">
          <strong>{number}</strong>
          {name !== null && <span class="tag">{name}</span>}
          {head && <span class="tag accent">now</span>}
          {pinned && <span class="tag">pinned</span>}
        </p>
        <p class="dim" title={exactly(created_at)}>
          <Time at={created_at} /> · {bytes(uploaded)} uploaded · {consistency}
        </p>
      </div>
      <div class="actions">
        <Button
          small
          disabled={fixed || !stopped || head}
          title={stopped ? 'Make a new generation that equals this one' : 'Stop the VM first'}
          aria-label={`Restore generation ${number}`}
          onClick={() => onAsk('restore')}
        >
          Restore
        </Button>
        <Button small disabled={fixed} aria-label={`Fork generation ${number}`} onClick={() => onAsk('fork')}>
          <Icon name="fork" />
          Fork
        </Button>
        <Button
          small
          kind="quiet"
          disabled={fixed}
          aria-label={`Name generation ${number}`}
          onClick={() => onAsk('name')}
        >
          Name
        </Button>
        <Button
          small
          kind="quiet"
          class="pin-button"
          disabled={fixed}
          aria-label={`${pinned ? 'Unpin' : 'Pin'} generation ${number}`}
          onClick={onPin}
        >
          <Icon name="pin" />
          {pinned ? 'Unpin' : 'Pin'}
        </Button>
      </div>
    </li>
  );
}

interface RestoreProps {
  readonly instance: Instance;
  readonly generation: Generation;
  readonly onClose: () => void;
}

function Restore({ instance, generation, onClose }: RestoreProps) {
  const { generation: number } = generation;
  const work = async () => {
    putInstance(await call('restoreInstance', { path: { id: instance.id }, body: { generation: number } }));
    tell('good', `${instance.name} is as it was in generation ${number}. Its next start has it.`);
  };
  return (
    <ConfirmDialog
      title={`Restore generation ${number}`}
      verb="Restore"
      harmless
      onClose={onClose}
      work={work}
    >
      <p>
        A new generation is made that equals generation {number} of {exactly(generation.created_at)}. Nothing
        is lost: the files of now stay in generation {instance.disk.generation}.
      </p>
    </ConfirmDialog>
  );
}
