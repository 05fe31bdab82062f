/**
 * The page for operators of the installation: findings, hosts, image versions, organisations, storage and mail. The
 * page changes nothing: operators make changes by commands on the server.
 */

import type {
  OperatorFinding,
  OperatorHost,
  OperatorOrganisation,
  OperatorStatus,
  QuotaUse,
} from '../../../client/src/generated.ts';
import { call } from '../api.ts';
import { bytes, duration, mebibytes, plural } from '../format.ts';
import { Button } from '../ui/button.tsx';
import { Icon } from '../ui/icon.tsx';
import { Loaded, PageHead, Section } from '../ui/page.tsx';
import { ListTable } from '../ui/table.tsx';
import { Time } from '../ui/time.tsx';
import { useAction } from '../use-action.ts';
import { useList, useQuery, useReloads } from '../use-query.ts';

export function OperatorPage() {
  const status = useQuery('operator', () => call('getOperatorStatus', {}));
  const refresh = useAction(status.reload);
  return (
    <>
      <PageHead
        title="Operator"
        lead={`The whole installation${status.data === undefined ? '' : `, Berth ${status.data.version}`}. To change it, use commands on the server.`}
        actions={
          <Button busy={refresh.busy} onClick={() => void refresh.run()}>
            Check again
          </Button>
        }
      />
      <Section
        title="Findings"
        lead={
          <>
            What <code>berth doctor</code> finds on the server.
          </>
        }
      >
        <Loaded query={status} lines={3}>
          {({ findings }) => <Findings findings={findings} />}
        </Loaded>
      </Section>
      <Hosts />
      <Section title="Storage and mail">
        <Loaded query={status} lines={3}>
          {(data) => <StorageAndMail {...data} />}
        </Loaded>
      </Section>
      <Organisations />
      <ImageVersions />
    </>
  );
}

/** Problems and weaknesses of the installation, each with its remedy. */
function Findings({ findings }: { readonly findings: readonly OperatorFinding[] }) {
  if (findings.length === 0) {
    return (
      <p class="panel finding-none">
        <Icon name="check" /> No problem and no weakness is known.
      </p>
    );
  }
  return (
    <ul class="findings panel">
      {findings.map(({ severity, check, found, next }, nth) => (
        <li key={`${check} ${nth}`} class={severity}>
          <Icon name={severity === 'problem' ? 'warning' : 'shield'} />
          <div>
            <p>
              <strong>{check}</strong> {severity === 'problem' && <span class="tag">problem</span>}
            </p>
            <p class="wrap">{found}</p>
            {next !== null && <p class="hint wrap">Next: {next}</p>}
          </div>
        </li>
      ))}
    </ul>
  );
}

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

/** The hosts: state, capacity and use. */
function Hosts() {
  const list = useList('operator hosts', (query) =>
    call('listOperatorHosts', { query: { limit: 100, ...query } }),
  );
  useReloads(list.reload, EVERY_MS);
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

/** Where the bytes are, and whether mail leaves. */
function StorageAndMail({ storage, data_folder, mail }: OperatorStatus) {
  const { free_bytes, total_bytes, path } = data_folder;
  return (
    <dl class="facts operator-facts panel">
      <div>
        <dt>Object storage</dt>
        <dd>
          {storage.kind === 's3' ? 'S3 bucket' : 'Folder'}
          <div class="dim wrap">{storage.place}</div>
        </dd>
      </div>
      <div>
        <dt>Stored</dt>
        <dd>
          {bytes(storage.disk_bytes)} of disks
          <div class="dim">{bytes(storage.image_bytes)} of images</div>
        </dd>
      </div>
      <div>
        <dt>Data folder</dt>
        <dd>
          {bytes(free_bytes)} free <span class="dim">of {bytes(total_bytes)}</span>
          <meter min={0} max={total_bytes} value={total_bytes - free_bytes} aria-label="Data folder in use" />
          <div class="dim wrap">{path}</div>
        </dd>
      </div>
      <div>
        <dt>Mail</dt>
        <dd>
          {mail.smtp ? 'A mail server is set' : 'No mail server is set'}
          <div class="dim">
            {mail.smtp
              ? `${plural(mail.waiting, 'mail')} waiting`
              : 'Mails are files in the data folder, under mail'}
          </div>
          {mail.failing > 0 && (
            <div class="bad">
              {plural(mail.failing, 'mail')} failing; the log says why, and each is tried again
            </div>
          )}
        </dd>
      </div>
    </dl>
  );
}

/** The stored versions of images. */
function ImageVersions() {
  const list = useList('operator images', (query) =>
    call('listOperatorImages', { query: { limit: 50, ...query } }).then((page) => ({
      ...page,
      data: page.data.map((row) => ({ ...row, id: `${row.image} ${row.version}` })),
    })),
  );
  return (
    <Section
      title="Images"
      lead={
        <>
          Versions in object storage. On the server, <code>berth image</code> adds and removes them.
        </>
      }
    >
      <ListTable
        list={list}
        empty={<p class="panel dim">No image is stored yet.</p>}
        columns={[
          {
            head: 'Image',
            cell: ({ image, version, current }) => (
              <>
                <strong>{image}</strong> {current && <span class="tag accent">for new disks</span>}
                <div>
                  <code class="dim">{version.slice(0, 12)}</code>
                </div>
              </>
            ),
          },
          { head: 'Disks', class: 'number', cell: ({ disks }) => disks },
          { head: 'Size', class: 'number nowrap', cell: ({ size_bytes }) => bytes(size_bytes) },
          {
            head: 'Stored',
            class: 'number nowrap',
            below: true,
            cell: ({ stored_bytes }) => bytes(stored_bytes),
          },
          {
            head: 'Created',
            class: 'nowrap',
            below: true,
            cell: ({ created_at }) => <Time at={created_at} />,
          },
        ]}
      />
    </Section>
  );
}

const plain = (value: number) => String(value);
const gibibytes = (value: number) => `${value} GiB`;

/** All organisations with their use and quotas. */
function Organisations() {
  const list = useList('operator organisations', (query) =>
    call('listOperatorOrganisations', { query: { limit: 50, ...query } }),
  );
  return (
    <Section
      title="Organisations"
      lead={
        <>
          How much of its quotas each organisation uses. On the server, <code>berth org quota</code> changes
          them.
        </>
      }
    >
      <ListTable
        list={list}
        empty={null}
        columns={[
          { head: 'Organisation', cell: (row) => <OrganisationName row={row} /> },
          { head: 'Instances', class: 'nowrap', cell: ({ quota }) => used(quota.instances, plain) },
          { head: 'CPUs', class: 'nowrap', below: true, cell: ({ quota }) => used(quota.cpus, plain) },
          {
            head: 'Memory',
            class: 'nowrap',
            below: true,
            cell: ({ quota }) => used(quota.memory_mib, mebibytes),
          },
          {
            head: 'Disk',
            class: 'nowrap',
            below: true,
            cell: ({ quota }) => used(quota.disk_gib, gibibytes),
          },
          { head: 'Members', class: 'number', below: true, cell: ({ members }) => members },
          {
            head: 'Created',
            class: 'nowrap',
            below: true,
            cell: ({ created_at }) => <Time at={created_at} />,
          },
        ]}
      />
    </Section>
  );
}

function OrganisationName({ row }: { readonly row: OperatorOrganisation }) {
  return (
    <>
      <strong class="wrap">{row.name}</strong> {row.operator && <span class="tag">operator</span>}
      <div>
        <code class="dim wrap">{row.id}</code>
      </div>
    </>
  );
}

function used({ used: amount, limit }: QuotaUse, format: (value: number) => string) {
  const full = limit !== null && amount >= limit;
  return (
    <>
      <span class={full ? 'bad' : undefined}>{format(amount)}</span>
      <span class="dim">{limit === null ? ', no limit' : ` of ${format(limit)}`}</span>
    </>
  );
}
