/**
 * Serves `/v1/operator`: state and findings of the installation, its hosts, images and organisations. Read-only, and
 * without secrets. The operator changes the installation by commands on the server.
 */
import { statfs } from 'node:fs/promises';
import { type Static, Type } from 'typebox';
import { rfc3339 } from '../../shared/clock.ts';
import type { OrgId } from '../../shared/ids.ts';
import type { AppContext } from '../context.ts';
import { sumStored, sumUnheld } from '../disks/segment-store.ts';
import { principalOf } from '../http/access.ts';
import type { App } from '../http/mutate.ts';
import { API_VERSION } from '../http/openapi-document.ts';
import { type CursorSealer, pageOfList } from '../http/pagination.ts';
import { idOf, named, nullable, oneOf, pageOf, pageQuery, Time } from '../http/schemas.ts';
import { listStoredVersions, type StoredVersion } from '../images/store.ts';
import { countMailsByState } from '../mail/store.ts';
import { readiness } from '../monitoring/health.ts';
import { countDigests } from '../notifications/store.ts';
import { listUse, type OrganisationUse } from '../organisations/quota-store.ts';
import { quotaStates } from '../organisations/quotas.ts';
import { OrgQuota } from '../organisations/routes.ts';
import { type FleetHost, listFleet } from './fleet-store.ts';
import { capacityOf } from './host-store.ts';
import { HOST_STATES, hostState, isOfFleet } from './place-vm.ts';
import { findWeaknesses } from './weaknesses.ts';

const EXAMPLE_VERSION = '5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef';

const Finding = named('OperatorFinding', {
  severity: oneOf(['problem', 'weakness'], {
    description:
      '`problem`: something does not work now. `weakness`: a setting, a limit or a file weakens the installation',
  }),
  check: Type.String({ examples: ['mail'] }),
  found: Type.String({ examples: ['none: resets, invitations and warnings are only files on the server'] }),
  next: nullable(Type.String({ description: 'What to set or run' }), {
    examples: ['BERTH_SMTP_URL=smtp://…'],
  }),
});
const Storage = named('OperatorStorage', {
  kind: oneOf(['folder', 's3']),
  place: Type.String({
    description: 'The path of the folder, or the bucket and its endpoint',
    examples: ['/var/lib/berth/objects'],
  }),
  disk_bytes: Type.Integer({
    description: 'The stored objects of all disks; objects that forks share count once',
    examples: [52_428_800_000],
  }),
  awaiting_removal_bytes: Type.Integer({
    description: 'Of these, objects that nothing needs any more. They are removed after the removal delay',
    examples: [1_048_576_000],
  }),
  removal_delay_seconds: Type.Integer({
    description: 'How long such objects stay, for a database that is set back in time',
    examples: [86_400],
  }),
  image_bytes: Type.Integer({ description: 'The stored objects of all images', examples: [734_003_200] }),
});
const DataFolder = named('OperatorDataFolder', {
  path: Type.String({ examples: ['/var/lib/berth'] }),
  free_bytes: Type.Integer({ description: 'What Berth may still write there', examples: [214_748_364_800] }),
  total_bytes: Type.Integer({ description: 'The size of its file system', examples: [536_870_912_000] }),
});
const Mail = named('OperatorMail', {
  smtp: Type.Boolean({
    description:
      'Whether a mail server is set (BERTH_SMTP_URL). Without one, mails are files in the data folder',
    examples: [true],
  }),
  waiting: Type.Integer({ description: 'Mails that are not sent yet', examples: [2] }),
  failing: Type.Integer({
    description:
      'Of these, mails that were tried without success. Each is tried again until it expires; the log has the reason',
    examples: [0],
  }),
});
const Status = named('OperatorStatus', {
  version: Type.String({ examples: [API_VERSION] }),
  findings: Type.Array(Finding, { description: 'Problems first; empty: none is known' }),
  storage: Storage,
  data_folder: DataFolder,
  mail: Mail,
});
const Host = named('OperatorHost', {
  id: idOf('host'),
  name: Type.String({ examples: ['local'] }),
  remote: Type.Boolean({ description: 'On another machine than the server', examples: [false] }),
  state: oneOf(HOST_STATES, {
    description:
      '`cordoned`: gets no new VM. `draining`: and its VMs move to other hosts. `drained`: and it has none. `expected`: added, and not seen yet. `silent`: no report in 20 s. `lost`: its lease has expired. `refused`: it speaks another version of the protocol',
  }),
  last_seen_at: nullable(Time),
  labels: Type.Record(Type.String(), Type.String(), { examples: [{ zone: 'b' }] }),
  taints: Type.Array(Type.String(), { examples: [['gpu']] }),
  lease_seconds: nullable(Type.Number({ description: 'null: the only host has no lease', examples: [40] })),
  vms: Type.Integer({ description: 'VMs that are not stopped, suspended or failed', examples: [3] }),
  memory_used_mib: Type.Integer({ description: 'The memory of these VMs', examples: [3072] }),
  memory_mib: nullable(
    Type.Integer({
      description: 'The memory for all VMs together; null: not reported, or not set by the operator',
      examples: [65_536],
    }),
  ),
  cpus: nullable(Type.Integer({ description: 'What one VM may have at most', examples: [16] })),
  accelerator: nullable(oneOf(['kvm', 'tcg'], { description: '`tcg`: VMs are emulated, which is slow' })),
  protocol: nullable(
    Type.Integer({ description: 'The version of the agent protocol that it spoke last', examples: [2] }),
  ),
  problems: Type.Array(Type.String(), {
    description: 'What does not work there',
    examples: [['object storage: connection refused']],
  }),
});
const ImageVersion = named('OperatorImageVersion', {
  image: Type.String({ examples: ['debian-12'] }),
  version: Type.String({ examples: [EXAMPLE_VERSION] }),
  current: Type.Boolean({ description: 'New disks are based on it', examples: [true] }),
  size_bytes: Type.Integer({ examples: [1_073_741_824] }),
  stored_bytes: Type.Integer({ examples: [314_572_800] }),
  disks: Type.Integer({ description: 'Disks that are based on it', examples: [12] }),
  created_at: Time,
});
const Organisation = named('OperatorOrganisation', {
  id: idOf('org'),
  name: Type.String({ examples: ['Analytical Engines'] }),
  operator: Type.Boolean({ description: 'It operates the installation', examples: [false] }),
  members: Type.Integer({ examples: [4] }),
  created_at: Time,
  quota: OrgQuota,
});

const ACCESS = { access: 'session', roles: ['owner', 'admin'], operator: true } as const;
const TAGS = ['Operator'];
/** Each organisation of a page is counted. */
const MAX_ORGANISATIONS = 100;

export function registerOperator(app: App, context: AppContext, cursors: CursorSealer): void {
  registerStatus(app, context);
  registerFleet(app, context, cursors);
  registerOrganisations(app, context, cursors);
}

function registerStatus(app: App, context: AppContext): void {
  app.route({
    method: 'GET',
    url: '/v1/operator',
    config: ACCESS,
    schema: {
      operationId: 'getOperatorStatus',
      summary: 'Get the state of the installation: findings, storage, mail',
      tags: TAGS,
      response: { 200: Status },
    },
    handler: () => readStatus(context),
  });
}

async function readStatus(context: AppContext): Promise<Static<typeof Status>> {
  const { db, installation, has_smtp } = context;
  const { data_dir, object_store } = installation;
  const [disk_bytes, awaiting_removal_bytes, versions, mails, digests, space] = await Promise.all([
    sumStored(db),
    sumUnheld(db),
    listStoredVersions(db),
    countMailsByState(db),
    countDigests(db),
    statfs(data_dir),
  ]);
  return {
    version: API_VERSION,
    findings: await readFindings(context),
    storage: {
      ...object_store,
      disk_bytes,
      awaiting_removal_bytes,
      removal_delay_seconds: installation.removal_delay_ms / 1_000,
      image_bytes: versions.reduce((sum, { stored_bytes }) => sum + stored_bytes, 0),
    },
    data_folder: {
      path: data_dir,
      free_bytes: space.bavail * space.bsize,
      total_bytes: space.blocks * space.bsize,
    },
    mail: { smtp: has_smtp, waiting: mails.waiting + digests, failing: mails.failing },
  };
}

async function readFindings(context: AppContext): Promise<Static<typeof Finding>[]> {
  const { database, object_store, host } = await readiness(context);
  const parts = { database, 'object storage': object_store, host };
  const problems = Object.entries(parts).flatMap(([check, { ok, problem = 'not ready' }]) =>
    ok ? [] : [{ severity: 'problem' as const, check, found: problem, next: 'look at the log of Berth' }],
  );
  const weaknesses = await findWeaknesses(context);
  return [...problems, ...weaknesses.map((each) => ({ severity: 'weakness' as const, ...each }))];
}

/** The rows of a short list that come after the one with this id. */
function pageAfter<T extends { readonly id: string }>(
  rows: readonly T[],
  after: string | null,
  count: number,
) {
  const at = after === null ? 0 : rows.findIndex(({ id }) => id === after) + 1;
  // A row that is gone since the page before: the list begins again.
  return rows.slice(at, at + count);
}

function registerFleet(app: App, { db }: AppContext, cursors: CursorSealer): void {
  app.route({
    method: 'GET',
    url: '/v1/operator/hosts',
    config: ACCESS,
    schema: {
      operationId: 'listOperatorHosts',
      summary: 'List the hosts, by name',
      tags: TAGS,
      querystring: pageQuery(200, {}),
      response: { 200: pageOf(Host) },
    },
    handler: (request) =>
      pageOfList(cursors, principalOf(request), request, {
        route: 'operator hosts',
        list: async (after, count) => pageAfter((await listFleet(db)).filter(isOfFleet), after, count),
        show: hostView,
      }),
  });
  app.route({
    method: 'GET',
    url: '/v1/operator/images',
    config: ACCESS,
    schema: {
      operationId: 'listOperatorImages',
      summary: 'List the stored versions of images, by image, newest first',
      tags: TAGS,
      querystring: pageQuery(200, {}),
      response: { 200: pageOf(ImageVersion) },
    },
    handler: (request) =>
      pageOfList(cursors, principalOf(request), request, {
        route: 'operator images',
        list: async (after, count) => {
          const versions = await listStoredVersions(db);
          const rows = versions.map((row) => ({ id: `${row.image_id} ${row.version}`, row }));
          return pageAfter(rows, after, count);
        },
        show: ({ row }) => imageView(row),
      }),
  });
}

function hostView(host: FleetHost): Static<typeof Host> {
  const { facts, lease_ms, last_seen_at } = host;
  const capacity = facts === null ? null : capacityOf({ ...host, facts });
  const problems = [
    ...(facts?.object_store_problem ? [`object storage: ${facts.object_store_problem}`] : []),
    ...(facts?.isolation_problem ? [`isolation of VMs: ${facts.isolation_problem}`] : []),
    ...(facts !== null && capacity === null ? ['its capacity is not set: it gets no VM'] : []),
  ];
  return {
    id: host.id,
    name: host.name,
    remote: host.remote,
    state: hostState(host),
    last_seen_at: last_seen_at && rfc3339(last_seen_at),
    labels: { ...host.labels },
    taints: [...host.taints],
    lease_seconds: lease_ms === null ? null : lease_ms / 1000,
    vms: host.vms,
    memory_used_mib: host.used_memory_mib,
    memory_mib: capacity?.memory_mib ?? null,
    cpus: facts === null ? null : (capacity?.cpus ?? facts.cpus),
    accelerator: facts?.accelerator ?? null,
    protocol: host.protocol,
    problems,
  };
}

function imageView({ image_id, created_at, ...row }: StoredVersion): Static<typeof ImageVersion> {
  return { ...row, image: image_id, created_at: rfc3339(created_at) };
}

function registerOrganisations(app: App, { db, quotas }: AppContext, cursors: CursorSealer): void {
  const view = ({ id, name, operator, members, created_at, own, ...used }: OrganisationUse) => ({
    id,
    name,
    operator,
    members,
    created_at: rfc3339(created_at),
    quota: quotaStates(own, quotas, used),
  });
  app.route({
    method: 'GET',
    url: '/v1/operator/organisations',
    config: ACCESS,
    schema: {
      operationId: 'listOperatorOrganisations',
      summary: 'List all organisations with their quotas and what they use',
      description: 'On the server, `berth org quota` changes a quota.',
      tags: TAGS,
      querystring: pageQuery(MAX_ORGANISATIONS, {}),
      response: { 200: pageOf(Organisation) },
    },
    handler: (request) =>
      pageOfList(cursors, principalOf(request), request, {
        route: 'operator organisations',
        max_limit: MAX_ORGANISATIONS,
        list: (before, count) => listUse(db, before as OrgId | null, count),
        show: view,
      }),
  });
}
