/**
 * The Generations tab of an instance: a timeline of its disk's generations, newest first. Each can be restored, forked,
 * named or pinned.
 */
import { useEffect, useState } from 'preact/hooks';
import type { Generation, Instance } from '../../../client/src/berth.ts';
import { durationText } from '../../../client/src/words.ts';
import { call } from '../api.ts';
import { bytes, exactly } from '../format.ts';
import { instances, putInstance } from '../live/instances.ts';
import { Button } from '../ui/button.tsx';
import { Field } from '../ui/field.tsx';
import { ConfirmDialog, FormDialog } from '../ui/form.tsx';
import { Icon } from '../ui/icon.tsx';
import { Empty, Section } from '../ui/page.tsx';
import { LoadedList } from '../ui/table.tsx';
import { Time } from '../ui/time.tsx';
import { tell } from '../ui/toasts.tsx';
import { attempt } from '../use-action.ts';
import { useList } from '../use-query.ts';
import { whyFixed } from './actions.tsx';
import { stopNotice, whileStopped } from './change-instance.ts';
import { ForkDialog } from './fork-dialog.tsx';
import { CONSISTENCY } from './state.tsx';

type Asked = { readonly what: 'restore' | 'fork' | 'name'; readonly generation: Generation } | null;

export function Generations({ instance }: { readonly instance: Instance }) {
  const { id, disk, generations_keep: keep, auto_flush_seconds } = instance;
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
  const reason = whyFixed(instance);
  const schedule =
    auto_flush_seconds === null
      ? 'The automatic flush is off.'
      : `Berth flushes every ${durationText(auto_flush_seconds)} while the VM runs.`;
  return (
    <Section
      title="Generations"
      lead={
        <>
          Each flush with something to save makes one. {schedule} The last {keep.last} are kept, then one a
          day for {keep.daily_days} days, and those that are pinned.{' '}
          <a href={`/instances/${instance.name}/settings`}>Change this</a>
        </>
      }
    >
      {reason !== undefined && <p class="hint timeline-reason">{reason}</p>}
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
        <ForkDialog instance={instance} generation={asked.generation} onClose={close} />
      )}
      {asked?.what === 'name' && (
        <NameDialog
          generation={asked.generation}
          onClose={close}
          work={(name) => change(asked.generation, { name })}
        />
      )}
      {asked?.what === 'restore' && (
        <RestoreDialog instance={instance} generation={asked.generation} onClose={close} />
      )}
    </Section>
  );
}

const MADE_BY: Record<Exclude<Generation['trigger'], 'fork' | 'restore'>, string> = {
  request: 'flush',
  auto: 'automatic flush',
  stop: 'stop',
  suspend: 'suspend',
  import: 'import of a file',
};

/** What made it; a fork's parent by its name while it exists. */
function makerOf({ trigger, origin }: Generation): string {
  if (trigger === 'restore') return `restored from ${origin?.generation}`;
  if (trigger !== 'fork') return MADE_BY[trigger];
  const parent = instances.value?.find(({ id }) => id === origin?.instance_id);
  return `forked from ${parent?.name ?? 'a deleted instance'}, generation ${origin?.generation}`;
}

function factsOf(generation: Generation): string {
  const { dirty_bytes, bytes: uploaded, duration_ms, consistency } = generation;
  return [
    makerOf(generation),
    ...(dirty_bytes === null ? [] : [`${bytes(dirty_bytes)} saved`, `${bytes(uploaded)} uploaded`]),
    ...(duration_ms === null ? [] : [`${(duration_ms / 1000).toFixed(1)} s`]),
    CONSISTENCY[consistency].short,
  ].join(' · ');
}

interface EntryProps {
  readonly generation: Generation;
  readonly instance: Instance;
  readonly onAsk: (what: 'restore' | 'fork' | 'name') => void;
  readonly onPin: () => void;
}

function Entry({ generation, instance, onAsk, onPin }: EntryProps) {
  const { generation: number, created_at, name, pinned } = generation;
  const head = number === instance.disk.generation;
  const fixed = whyFixed(instance) !== undefined;
  return (
    <li class={head ? 'head' : ''}>
      <div class="timeline-text">
        <p class="timeline-title">
          <strong>{number}</strong>
          {name !== null && <span class="tag">{name}</span>}
          {head && <span class="tag accent">current</span>}
          {pinned && <span class="tag">pinned</span>}
        </p>
        <p>
          {exactly(created_at)} (<Time at={created_at} />)
        </p>
        <p class="dim">{factsOf(generation)}</p>
      </div>
      <div class="actions">
        {!head && (
          <Button
            small
            disabled={fixed}
            title="Set the disk back to these files"
            aria-label={`Restore generation ${number}`}
            onClick={() => onAsk('restore')}
          >
            Restore
          </Button>
        )}
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

interface RestoreDialogProps {
  readonly instance: Instance;
  readonly generation: Generation;
  readonly onClose: () => void;
}

/** Restores a generation; a running VM is stopped for it, and started again. */
function RestoreDialog({ instance, generation, onClose }: RestoreDialogProps) {
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

interface NameDialogProps {
  readonly generation: Generation;
  readonly onClose: () => void;
  /** null removes the name. */
  readonly work: (name: string | null) => Promise<void>;
}

/** Asks for the name of a generation; an empty one takes it away. */
function NameDialog({ generation, onClose, work }: NameDialogProps) {
  return (
    <FormDialog
      title={`Name generation ${generation.generation}`}
      verb="Save"
      onClose={onClose}
      work={(form) => work(String(form.get('name')).trim() || null)}
    >
      <Field
        label="Name"
        name="name"
        defaultValue={generation.name ?? ''}
        maxLength={100}
        autofocus
        placeholder="before the upgrade"
        hint="A name helps you to find it; empty: none. Only a pin keeps it, however old it gets"
      />
    </FormDialog>
  );
}
