/** The SSH command, which never changes, and what a connection does in the VM's present state. */
import type { Instance, VmState } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { Copyable } from '../ui/copy.tsx';
import { Section } from '../ui/page.tsx';
import { useQuery } from '../use-query.ts';

interface Props {
  readonly instance: Instance;
}

/** The user that Berth's images let in. */
const SSH_USER = 'root';
const SOON: readonly VmState[] = ['starting', 'restarting'];

export function Connect({ instance }: Props) {
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

function NoKeys({ instance: { id, name, vm } }: Props) {
  const { data } = useQuery(`key set ${id} ${vm.boot}`, () => call('getKeySet', { path: { id } }));
  if (data?.data.length !== 0) return null;
  return (
    <p class="notice">
      No key is accepted, so nobody can log in. <a href="/ssh-keys">Add an SSH key</a> to your account, or
      choose some under <a href={`/instances/${name}/keys`}>Keys</a>.
    </p>
  );
}

function HostKeys({ instance: { host_keys, ssh } }: Props) {
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
