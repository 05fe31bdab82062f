/** The hosts: state, capacity and use. */
import { useEffect } from 'preact/hooks';
import type { OperatorHost } from '../../../client/src/generated.ts';
import { call } from '../api.ts';
import { duration, mebibytes, plural } from '../format.ts';
import { ListTable } from '../ui/loaded-list.tsx';
import { Section } from '../ui/page.tsx';
import { Time } from '../ui/time.tsx';
import { useList } from '../use-list.ts';

/** How often the list is read again: a drain goes on meanwhile. */
const EVERY_MS = 5_000;

const STATES: Readonly<Record<OperatorHost['state'], string>> = {
  up: 'up',
  cordoned: 'cordoned: gets no new VM',
  draining: 'draining: its VMs move to other hosts',
  drained: 'drained: it has no VM, and gets none',
  expected: 'expected: has not reported yet',
  silent: 'silent: no report in 20 s',
  lost: 'lost: its lease has expired',
  refused: 'refused: another protocol version',
};

export function Hosts() {
  const list = useList('operator hosts', (query) =>
    call('listOperatorHosts', { query: { limit: 100, ...query } }),
  );
  const { reload } = list;
  useEffect(() => {
    const timer = setInterval(() => void (document.hidden || reload()), EVERY_MS);
    return () => clearInterval(timer);
  }, [reload]);
  return (
    <Section
      title="Hosts"
      lead={
        <>
          On the server, <code>berth host</code> adds, drains and removes hosts.
        </>
      }
    >
      <ListTable
        list={list}
        empty={<p class="panel dim">No host has reported yet.</p>}
        columns={[
          { head: 'Host', cell: (host) => <HostName host={host} /> },
          { head: 'VMs', class: 'number', below: true, cell: ({ vms }) => vms },
          { head: 'Memory', below: true, cell: (host) => <Memory host={host} /> },
          { head: 'CPUs', class: 'number', below: true, cell: ({ cpus }) => cpus ?? '–' },
          {
            head: 'Accelerator',
            below: true,
            cell: ({ accelerator }) => acceleratorText(accelerator),
          },
          { head: 'Lease', class: 'nowrap', below: true, cell: (host) => leaseText(host) },
          {
            head: 'Last seen',
            class: 'nowrap',
            below: true,
            cell: (host) => <Time at={host.last_seen_at} />,
          },
        ]}
      />
    </Section>
  );
}

function HostName({ host }: { readonly host: OperatorHost }) {
  const { name, remote, state, protocol, problems, vms, labels, taints } = host;
  return (
    <>
      <strong>{name}</strong> {!remote && <span class="tag">this server</span>}
      {Object.entries(labels).map(([label, value]) => (
        <span key={label} class="tag">
          {label}={value}
        </span>
      ))}
      {taints.map((taint) => (
        <span key={taint} class="tag">
          taint {taint}
        </span>
      ))}
      <div class={state === 'up' ? 'dim' : 'bad'}>
        {STATES[state]}
        {state === 'draining' && `, ${plural(vms, 'VM')} left`}
        {protocol !== null && <span class="dim">, protocol {protocol}</span>}
      </div>
      {problems.map((problem) => (
        <div key={problem} class="bad wrap">
          {problem}
        </div>
      ))}
    </>
  );
}

function Memory({ host }: { readonly host: OperatorHost }) {
  const { memory_used_mib: used, memory_mib: most, name } = host;
  return (
    <>
      {mebibytes(used)}
      <span class="dim"> {most === null ? 'of an unknown capacity' : `of ${mebibytes(most)}`}</span>
      {most !== null && <meter min={0} max={most} value={used} aria-label={`Memory of ${name} in use`} />}
    </>
  );
}

function acceleratorText(accelerator: OperatorHost['accelerator']): string {
  if (accelerator === null) return '–';
  return accelerator === 'kvm' ? 'KVM' : 'none: VMs are emulated';
}

function leaseText({ lease_seconds }: OperatorHost): string {
  return lease_seconds === null
    ? 'no lease: the only host'
    : `lease of ${duration(Math.round(lease_seconds))}`;
}
