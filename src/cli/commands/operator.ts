/**
 * The commands `berth operator …`: show the operator the hosts, images and organisations of the installation, through
 * the API. They change nothing: changes need commands on the server (`server.ts`).
 */
import type {
  OperatorHost,
  OperatorImageVersion,
  OperatorOrganisation,
} from '../../../client/src/generated.ts';
import type { Call, Command } from '../command.ts';
import { collect } from '../reading.ts';
import { inSession } from '../session.ts';
import { bytes, cell, flagCell, type Listing, numberCell, plural, sizeCell, timeCell } from '../table.ts';
import { labelsText } from './instance-view.ts';

const MIB = 2 ** 20;

async function show(call: Call): Promise<undefined> {
  const { terminal } = call;
  const status = await inSession(call, (berth) => berth.call('getOperatorStatus', {}));
  const { version, findings, storage, data_folder, mail } = status;
  const kind = storage.kind === 's3' ? 'S3 bucket' : 'folder';
  const mails = mail.smtp
    ? `by a mail server; ${plural(mail.waiting, 'mail')} waiting, ${mail.failing} failing`
    : 'no mail server is set: mails are files in the data folder, in mail/';
  terminal.one(status, {
    rows: () => [
      ['version', version],
      ['object storage', `${kind} ${storage.place}`],
      ['stored', `${bytes(storage.disk_bytes)} of disks, ${bytes(storage.image_bytes)} of images`],
      [
        'awaiting removal',
        `${bytes(storage.awaiting_removal_bytes)} of these, removed ${plural(storage.removal_delay_seconds / 3_600, 'hour')} after their last use`,
      ],
      ['data folder', data_folder.path],
      ['free there', `${bytes(data_folder.free_bytes)} of ${bytes(data_folder.total_bytes)}`],
      ['mail', mails],
      ['findings', findings.length === 0 ? 'none' : String(findings.length)],
    ],
    quiet: () => version,
  });
  for (const { severity, check, found, next } of findings) {
    const sign = severity === 'problem' ? 'NO' : '!';
    terminal.say(
      `${sign.padEnd(3)} ${check.padEnd(12)} ${found}${next === null ? '' : `\n    next: ${next}`}`,
    );
  }
}

const HOSTS: Listing<OperatorHost> = {
  headings: [
    'NAME',
    'STATE',
    'VMS',
    'MEMORY',
    'CPUS',
    'ACCELERATOR',
    'LAST SEEN',
    { for_people: 'PROBLEMS' },
  ],
  row: (host) => [
    host.name,
    host.state,
    numberCell(host.vms),
    cell(
      `${bytes(host.memory_used_mib * MIB)} of ${host.memory_mib === null ? 'not set' : bytes(host.memory_mib * MIB)}`,
      host.memory_used_mib * MIB,
    ),
    numberCell(host.cpus),
    host.accelerator ?? '-',
    timeCell(host.last_seen_at),
    host.problems.join('; ') || '-',
  ],
  more: {
    headings: ['MOST MEMORY', 'REMOTE', 'LABELS', 'TAINTS', 'LEASE SECONDS', 'PROTOCOL', 'ID'],
    row: ({ memory_mib, remote, labels, taints, lease_seconds, protocol, id }) => [
      sizeCell(memory_mib === null ? null : memory_mib * MIB),
      flagCell(remote),
      labelsText(labels) || '-',
      taints.join(', ') || '-',
      numberCell(lease_seconds),
      numberCell(protocol),
      id,
    ],
  },
  quiet: ({ name }) => name,
  empty: 'No hosts.',
};

const IMAGES: Listing<OperatorImageVersion> = {
  headings: ['IMAGE', 'VERSION', 'CURRENT', 'SIZE', 'STORED', 'DISKS', 'CREATED'],
  row: (each) => [
    each.image,
    cell(each.version.slice(0, 12), each.version),
    flagCell(each.current),
    sizeCell(each.size_bytes),
    sizeCell(each.stored_bytes),
    numberCell(each.disks),
    timeCell(each.created_at),
  ],
  quiet: ({ version }) => version,
  empty: 'No images are stored.',
};

function usedCell({ used, limit }: { readonly used: number; readonly limit: number | null }, unit = 1) {
  const text = (value: number) => (unit === 1 ? String(value) : bytes(value * unit));
  return cell(`${text(used)} of ${limit === null ? 'unlimited' : text(limit)}`, used * unit);
}

const ORGANISATIONS: Listing<OperatorOrganisation> = {
  headings: ['NAME', 'MEMBERS', 'INSTANCES', 'CPUS', 'MEMORY', 'DISK', 'CREATED', 'ID'],
  row: ({ name, members, quota, created_at, id }) => [
    name,
    numberCell(members),
    usedCell(quota.instances),
    usedCell(quota.cpus),
    usedCell(quota.memory_mib, MIB),
    usedCell(quota.disk_gib, 2 ** 30),
    timeCell(created_at),
    id,
  ],
  more: { headings: ['OPERATOR'], row: ({ operator }) => [flagCell(operator)] },
  quiet: ({ id }) => id,
  empty: 'No organisations.',
};

const SHARED = { password: 'unless_sudo' } as const;
const WHO = "For owners and admins of the first administrator's organisation.";

export const OPERATOR_COMMANDS: readonly Command[] = [
  {
    ...SHARED,
    name: 'operator show',
    short: ['operator'],
    summary: 'show the state of the installation: findings, storage and mail',
    details: WHO,
    example: 'berth operator',
    run: show,
  },
  {
    ...SHARED,
    name: 'operator hosts',
    lists: true,
    summary: 'list the machines that VMs run on, and their use',
    details: `${WHO} On the server, berth host adds and removes them.`,
    example: 'berth operator hosts',
    run: async (call) => {
      const found = await inSession(call, (berth) => collect(berth.list('listOperatorHosts', {})));
      call.terminal.list(found, HOSTS);
    },
  },
  {
    ...SHARED,
    name: 'operator images',
    lists: true,
    summary: 'list the stored versions of images, and how many disks need each',
    details: `${WHO} On the server, berth image adds and removes them.`,
    example: 'berth operator images',
    run: async (call) => {
      const found = await inSession(call, (berth) => collect(berth.list('listOperatorImages', {})));
      call.terminal.list(found, IMAGES);
    },
  },
  {
    ...SHARED,
    name: 'operator orgs',
    lists: true,
    summary: 'list all organisations with what they use of their quotas',
    details: `${WHO} On the server, berth org quota changes quotas.`,
    example: 'berth operator orgs',
    run: async (call) => {
      const found = await inSession(call, (berth) => collect(berth.list('listOperatorOrganisations', {})));
      call.terminal.list(found, ORGANISATIONS);
    },
  },
];
