/**
 * The Overview tab of an instance: the SSH command, how much of the disk is saved, settings, and the charts of its use.
 */
import type { ComponentChildren } from 'preact';
import type { Instance, VmState } from '../../../client/src/berth.ts';
import { durationText } from '../../../client/src/words.ts';
import { call } from '../api.ts';
import { bytes } from '../format.ts';
import { instances } from '../live/instances.ts';
import { Copyable } from '../ui/button.tsx';
import { Section } from '../ui/page.tsx';
import { Time } from '../ui/time.tsx';
import { useQuery } from '../use-query.ts';
import { Charts } from './charts.tsx';
import { RESTART_WORDS } from './instance-form.tsx';
import { savedHint, savedState } from './state.tsx';

interface OverviewProps {
  readonly instance: Instance;
}

export function Overview({ instance }: OverviewProps) {
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

function DiskFacts({ instance }: OverviewProps) {
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

interface ConnectProps {
  readonly instance: Instance;
}

/** The user that Berth's images let in. */
const SSH_USER = 'root';
const SOON: readonly VmState[] = ['starting', 'restarting'];

/** The SSH command, which never changes, and what a connection does in the VM's present state. */
function Connect({ instance }: ConnectProps) {
  const { host, port } = instance.ssh;
  const { state } = instance.vm;
  return (
    <Section title="Connect" lead="The address stays the same for the life of the instance.">
      <div class="panel connect stack">
        <Copyable text={`ssh -p ${port} ${SSH_USER}@${host}`} label="Copy the SSH command" />
        {state !== 'running' && <p class="hint">{whatAConnectionDoes(instance)}</p>}
        <NoKeys instance={instance} />
        <HostKeys instance={instance} />
      </div>
    </Section>
  );
}

function whatAConnectionDoes({ vm: { state }, wake_on_connect }: Instance): string {
  if (SOON.includes(state)) return `The VM is ${state}. The command works as soon as it runs.`;
  if (!wake_on_connect && state === 'suspending')
    return 'The VM is being suspended. Resume it afterwards to log in.';
  if (!wake_on_connect && state === 'stopping')
    return 'The VM is being stopped. Start it afterwards to log in.';
  if (state === 'failed') return 'The VM has failed. Start it to log in.';
  return wake_on_connect
    ? `The VM is ${state}. A connection, or a request to an HTTP port, starts it and waits until it runs.`
    : `The VM is ${state}. ${state === 'suspended' ? 'Resume' : 'Start'} it to log in, or turn on “Wake on connect” in the settings.`;
}

function NoKeys({ instance: { id, name, vm } }: ConnectProps) {
  const { data } = useQuery(`key set ${id} ${vm.boot}`, () => call('getKeySet', { path: { id } }));
  if (data?.data.length !== 0) return null;
  return (
    <p class="notice">
      No key is accepted, so nobody can log in. <a href="/ssh-keys">Add an SSH key</a> to your account, or
      choose some under <a href={`/instances/${name}/keys`}>Keys</a>.
    </p>
  );
}

function HostKeys({ instance: { host_keys, ssh } }: ConnectProps) {
  if (host_keys.length === 0) return <p class="hint">The host key is known after the first start.</p>;
  // sshd(8): a port other than 22 is written [host]:port.
  const known = host_keys
    .map(({ public_key }) => `echo '[${ssh.host}]:${ssh.port} ${public_key}' >> ~/.ssh/known_hosts`)
    .join('\n');
  return (
    <details>
      <summary>Host key: check that you reach this instance</summary>
      <div class="stack">
        {host_keys.map(({ type, fingerprint }) => (
          <code key={fingerprint} class="wrap">
            {type} {fingerprint}
          </code>
        ))}
        <Copyable text={known} label="Copy the command that makes the host known" />
      </div>
    </details>
  );
}
