import { createServer } from 'node:net';
import { actorOf, type Principal } from '../auth/principal.ts';
import { notify } from '../db/notify.ts';
import { type Tx, violates } from '../db/pool.ts';
import { append } from '../events/append.ts';
import { imageKnown } from '../images/store.ts';
import { present } from '../lib/assert.ts';
import { AppError, invalid } from '../lib/errors.ts';
import { newId } from '../lib/ids.ts';
import { checkQuota } from '../orgs/quotas.ts';
import { findInstance, freePort, type InstanceRow, insertInstance } from './store.ts';
import { instanceView } from './view.ts';

export interface InstanceRequest {
  readonly name: string;
  readonly image: string;
  readonly cpus: number;
  readonly memory_mib: number;
  readonly disk_gib: number;
  readonly labels: Record<string, string>;
  readonly auto_flush_seconds: number | null;
  /** A script that root runs once at the first boot. */
  readonly user_data: string | null;
}

/** Where instances' SSH ports are opened. */
export interface SshEndpoint {
  readonly host: string;
  readonly first_port: number;
  readonly last_port: number;
}

/**
 * Makes an instance with an empty disk and an SSH port of its own.
 * @throws AppError CONFLICT, INVALID_REQUEST, QUOTA_EXCEEDED, UNAVAILABLE
 */
export async function createInstance(
  tx: Tx,
  principal: Principal,
  ssh: SshEndpoint,
  request: InstanceRequest,
): Promise<InstanceRow> {
  if (!(await imageKnown(tx, request.image))) {
    throw invalid('image', `no host has an image "${request.image}"`);
  }
  await checkQuota(tx, principal.org_id, { instances: 1, disk_gib: request.disk_gib });
  const ssh_port = await openablePort(tx, ssh);
  try {
    return await insert(tx, principal, request, ssh_port);
  } catch (error) {
    if (!violates(error, 'instances_org_id_name_key')) throw error;
    const message = `An instance named "${request.name}" exists already.`;
    throw new AppError('CONFLICT', { message, cause: error });
  }
}

/** Ports that another program of this machine holds are found by trying, and passed over. */
async function openablePort(tx: Tx, ssh: SshEndpoint): Promise<number> {
  const taken: number[] = [];
  for (;;) {
    const port = await freePort(tx, ssh.first_port, ssh.last_port, taken);
    if (port === undefined) {
      throw new AppError('UNAVAILABLE', {
        message: `All SSH ports (${ssh.first_port}-${ssh.last_port}) are in use. Delete an instance, or widen BERTH_SSH_PORTS.`,
        retry_after_seconds: 60,
      });
    }
    if (await portIsFree(ssh.host, port)) return port;
    taken.push(port);
  }
}

async function insert(
  tx: Tx,
  principal: Principal,
  request: InstanceRequest,
  ssh_port: number,
): Promise<InstanceRow> {
  const id = newId('inst');
  await insertInstance(tx, {
    ...request,
    id,
    org_id: principal.org_id,
    created_by: actorOf(principal),
    ssh_port,
  });
  const row = present(await findInstance(tx, principal.org_id, id), 'instance just made');
  await append(tx, {
    org_id: principal.org_id,
    instance_id: id,
    type: 'instance.created',
    data: { instance: instanceView(row) },
    actor: actorOf(principal),
  });
  await notify(tx, 'routes');
  return row;
}

/** Whether the port can be opened on this machine; a host that is not this machine is not tried. */
function portIsFree(host: string, port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const probe = createServer();
    probe.once('error', (error: NodeJS.ErrnoException) => resolve(error.code !== 'EADDRINUSE'));
    probe.listen({ host, port, exclusive: true }, () => probe.close(() => resolve(true)));
  });
}
