/**
 * Defines the paths of all files and folders below the data folder (`pathsIn`), as a pure function. Also limits the
 * length of the data folder's own path: the kernel accepts unix socket paths of at most 107 bytes (`sun_path` is 108
 * with the terminating zero, see unix(7)).
 */
import { join } from 'node:path';

export interface Paths {
  readonly data: string;
  /** `cluster/` and `socket/` of the embedded PostgreSQL, owned by its user. */
  readonly postgres: string;
  /** The object store, unless a bucket is set. */
  readonly objects: string;
  readonly images: string;
  /** `images/debian-12/<first 12 digits of the version>/`, and `current`, a link to the newest. */
  readonly debian_12: string;
  /** `<instance id>*`: a cache. */
  readonly overlays: string;
  /** `<instance id>/`: sockets, pid and record of a running VM. */
  readonly vms: string;
  /** Memory of booted kernels that new boots start from: a cache. */
  readonly templates: string;
  /** Unix sockets and lock of Berth's processes. */
  readonly run: string;
  readonly launcher_lock: string;
  /** The /etc of QEMU's jails: the resolvers. */
  readonly jail_etc: string;
  /** The host's lease; absent on the only host. */
  readonly lease: string;
  /** The process that enforces the lease. */
  readonly fencer: string;
  /** The control planes that a host of a fleet knows. */
  readonly control_planes: string;
  /** VMs were paused, so the agent must check them. */
  readonly fenced: string;
  /** The control plane's socket for the host's agent. */
  readonly agent_api_socket: string;
  readonly mail: string;
  readonly secrets: string;
  readonly secret_key: string;
  readonly host_token: string;
  /** Of a host on another machine. */
  readonly host_credential: string;
  readonly ingress_token: string;
  /** The first administrator's address and generated password, as JSON. */
  readonly first_login: string;
  readonly logs: string;
  /** Berth's log, when it runs on a terminal. */
  readonly log_file: string;
  readonly postgres_log: string;
  readonly fencer_log: string;
}

export const SOCKET_PATH_MAX_BYTES = 107;
/** Longest file name of a socket in `vms/<instance id>/` or of `run/`. */
export const SOCKET_NAME_MAX_BYTES = 16;
const INSTANCE_ID_BYTES = 'inst_'.length + 26;

export function pathsIn(data: string): Paths {
  return {
    data,
    postgres: join(data, 'postgres'),
    objects: join(data, 'objects'),
    images: join(data, 'images'),
    debian_12: join(data, 'images', 'debian-12'),
    overlays: join(data, 'overlays'),
    vms: join(data, 'vms'),
    templates: join(data, 'templates'),
    run: join(data, 'run'),
    launcher_lock: join(data, 'run', 'launcher.lock'),
    jail_etc: join(data, 'run', 'etc'),
    lease: join(data, 'run', 'lease.json'),
    fencer: join(data, 'run', 'fencer.json'),
    control_planes: join(data, 'run', 'control-planes.json'),
    fenced: join(data, 'run', 'fenced'),
    agent_api_socket: join(data, 'run', 'agent-api.sock'),
    mail: join(data, 'mail'),
    secrets: join(data, 'secrets'),
    secret_key: join(data, 'secrets', 'secret-key'),
    host_token: join(data, 'secrets', 'host-token'),
    host_credential: join(data, 'secrets', 'host-credential'),
    ingress_token: join(data, 'secrets', 'ingress-token'),
    first_login: join(data, 'secrets', 'first-login'),
    logs: join(data, 'logs'),
    log_file: join(data, 'logs', 'berth.log'),
    postgres_log: join(data, 'logs', 'postgres.log'),
    fencer_log: join(data, 'logs', 'fencer.log'),
  };
}

/** The longest data folder path with which every socket below it can be bound: 54 bytes. */
export const DATA_DIR_MAX_BYTES =
  SOCKET_PATH_MAX_BYTES - '/vms/'.length - INSTANCE_ID_BYTES - '/'.length - SOCKET_NAME_MAX_BYTES;

/** The problem of `data` (an absolute path) as a data folder, if any. */
export function dataDirProblem(data: string): string | undefined {
  const bytes = Buffer.byteLength(data);
  if (bytes > DATA_DIR_MAX_BYTES) {
    return (
      `BERTH_DATA_DIR: ${JSON.stringify(data)} has ${bytes} bytes; expected at most ${DATA_DIR_MAX_BYTES}, because the unix sockets ` +
      `below it may have paths of ${SOCKET_PATH_MAX_BYTES} bytes. Set BERTH_DATA_DIR to a shorter path`
    );
  }
  if (data === '/') return 'BERTH_DATA_DIR: "/" is not valid; expected a folder used by nothing else';
  // Commas, colons and line breaks would need escaping in QEMU's options.
  if (/[\p{Cc},:'"\\]/u.test(data)) {
    return `BERTH_DATA_DIR: ${JSON.stringify(data)} is not valid; expected a path without commas, colons, quotes and backslashes`;
  }
  return undefined;
}
