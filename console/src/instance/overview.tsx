/** How to connect, what is saved, and the VM's usage. */
import type { ComponentChildren } from 'preact';
import type { Instance } from '../../../client/src/berth.ts';
import { durationText } from '../../../client/src/words.ts';
import { bytes } from '../format.ts';
import { instances } from '../live/instances.ts';
import { Section } from '../ui/page.tsx';
import { Time } from '../ui/time.tsx';
import { Charts } from './charts.tsx';
import { Connect } from './connect.tsx';
import { RESTART_WORDS } from './instance-form.tsx';
import { savedHint, savedState } from './saved-state.ts';

interface Props {
  readonly instance: Instance;
}

export function Overview({ instance }: Props) {
  const { vm } = instance;
  return (
    <>
      <Connect instance={instance} />
      <DiskFacts instance={instance} />
      {vm.boot > 0 && <Charts instance={instance} />}
    </>
  );
}

interface FactProps {
  readonly name: string;
  readonly children: ComponentChildren;
  readonly wide?: boolean;
}

function Fact({ name, children, wide = false }: FactProps) {
  return (
    <div class={wide ? 'wide' : undefined}>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

function DiskFacts({ instance }: Props) {
  const { disk, vm, idle_timeout_seconds, auto_flush_seconds, wake_on_connect, restart, created_at, id } =
    instance;
  const hint = savedHint(instance);
  return (
    <Section title="Disk and VM">
      <div class="panel stack">
        <dl class="facts">
          <Fact name="Saved">{savedState(instance)}</Fact>
          <Fact name="Last flush">
            <Time at={disk.durable_at} />
          </Fact>
          <Fact name="Generation">{disk.generation === 0 ? 'none yet' : disk.generation}</Fact>
          <Fact name="In object storage">{bytes(disk.stored_bytes)}</Fact>
          <Fact name="Boots">{vm.boot}</Fact>
          <Fact name="Started">
            <Time at={vm.started_at} />
          </Fact>
          <Fact name="Automatic flush">
            {auto_flush_seconds === null ? 'off' : `every ${durationText(auto_flush_seconds)} while it runs`}
          </Fact>
          <Fact name="Idle stop">
            {idle_timeout_seconds === null ? 'off' : `after ${durationText(idle_timeout_seconds)}`}
          </Fact>
          <Fact name="Wake on connect">{wake_on_connect ? 'on' : 'off'}</Fact>
          <Fact name="Restart">{RESTART_WORDS[restart]}</Fact>
          <Fact name="Created">
            <Time at={created_at} />
          </Fact>
          {instance.forked_from && (
            <Fact name="Forked from">
              <ForkedFrom of={instance.forked_from} />
            </Fact>
          )}
          <Fact name="Id" wide>
            <code class="wrap">{id}</code>
          </Fact>
        </dl>
        {hint !== null && <p class="hint">{hint}</p>}
      </div>
    </Section>
  );
}

/** The parent by its name while it exists. */
function ForkedFrom({ of }: { readonly of: NonNullable<Instance['forked_from']> }) {
  const parent = instances.value?.find(({ id }) => id === of.instance_id);
  return (
    <>
      {parent ? <a href={`/instances/${parent.name}`}>{parent.name}</a> : 'a deleted instance'}, generation{' '}
      {of.generation}
      {of.dirty_bytes > 0 && `, without at least ${bytes(of.dirty_bytes)} unsaved`}
    </>
  );
}
