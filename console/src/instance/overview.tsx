/** The SSH command, the durable state, and the VM's usage. */
import type { ComponentChildren } from 'preact';
import type { Instance } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { bytes, duration } from '../format.ts';
import { Copyable } from '../ui/copy.tsx';
import { Loaded, Section } from '../ui/page.tsx';
import { Time } from '../ui/time.tsx';
import { useQuery } from '../use-query.ts';
import { Charts } from './charts.tsx';

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

function Connect({ instance }: Props) {
  const { state } = instance.vm;
  return (
    <Section title="Connect">
      {state === 'running' ? (
        <SshCommand instance={instance} />
      ) : (
        <p class="panel connect dim">
          {state === 'starting' || state === 'restarting'
            ? 'The VM is on its way. The SSH command is shown as soon as it works.'
            : instance.wake_on_connect
              ? 'The VM does not run. An SSH connection wakes it; start it to see the command.'
              : 'Start the VM to log in by SSH.'}
        </p>
      )}
    </Section>
  );
}

function SshCommand({ instance }: Props) {
  const { id, vm } = instance;
  const details = useQuery(`ssh ${id} ${vm.boot}`, () => call('getSsh', { path: { id } }));
  const { data, error } = details;
  if (!data && error !== null) return <Loaded query={details}>{() => null}</Loaded>;
  if (!data) return <p class="panel connect dim">Asking how to connect…</p>;
  const known = data.known_hosts.map((line) => `echo '${line}' >> ~/.ssh/known_hosts`).join('\n');
  return (
    <div class="panel connect stack">
      <Copyable text={data.command} label="Copy the SSH command" />
      {data.allowed_keys === 0 && (
        <p class="notice">
          No key is accepted, so nobody can log in. <a href="/ssh-keys">Add an SSH key</a> to your account, or
          choose some under <a href={`/instances/${instance.name}/keys`}>Keys</a>.
        </p>
      )}
      <details>
        <summary>Host key, to be sure that it is this guest</summary>
        <div class="stack">
          {data.host_keys.map(({ type, fingerprint }) => (
            <code key={fingerprint} class="wrap">
              {type} {fingerprint}
            </code>
          ))}
          <Copyable text={known} label="Copy the command that makes the host known" />
        </div>
      </details>
    </div>
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
  const { disk, vm, idle_timeout_seconds, auto_flush_seconds, wake_on_connect, created_at, id } = instance;
  return (
    <Section title="Disk and VM">
      <dl class="facts panel">
        <Fact name="Durable generation">{disk.generation === 0 ? 'none yet' : disk.generation}</Fact>
        <Fact name="Durable since">
          <Time at={disk.durable_at} />
        </Fact>
        <Fact name="Not durable yet">
          {vm.state === 'failed' && disk.dirty_bytes > 0 ? 'at most ' : ''}
          {bytes(disk.dirty_bytes)}
        </Fact>
        <Fact name="In object storage">{bytes(disk.stored_bytes)}</Fact>
        <Fact name="Boots">{vm.boot}</Fact>
        <Fact name="Started">
          <Time at={vm.started_at} />
        </Fact>
        <Fact name="Automatic flush">
          {auto_flush_seconds === null ? 'off' : `every ${duration(auto_flush_seconds)}`}
        </Fact>
        <Fact name="Idle stop">
          {idle_timeout_seconds === null ? 'off' : `after ${duration(idle_timeout_seconds)}`}
        </Fact>
        <Fact name="Wake on connect">{wake_on_connect ? 'on' : 'off'}</Fact>
        <Fact name="Created">
          <Time at={created_at} />
        </Fact>
        <Fact name="Id" wide>
          <code class="wrap">{id}</code>
        </Fact>
      </dl>
    </Section>
  );
}
