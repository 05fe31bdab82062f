/**
 * Reads the settings of what this machine runs: everything (`npm start`), a control plane, a host, or an ingress. It runs before any
 * process starts, so a wrong setting ends the start at once.
 */
import { existsSync } from 'node:fs';
import type { Config } from '../config/config.ts';
import type { Paths } from '../config/paths.ts';
import { readJoinToken } from './join.ts';
import { StartError } from './start-error.ts';

/** `all`: an installation on one machine, or the first one of a fleet. The others are single roles of a fleet. */
export const MACHINES = ['all', 'control-plane', 'host'] as const;
export type Machine = (typeof MACHINES)[number];

/** The roles on each, in the order of their start. */
export const ROLES_OF: Record<Machine, readonly ('control-plane' | 'agent' | 'ingress')[]> = {
  all: ['control-plane', 'agent', 'ingress'],
  'control-plane': ['control-plane'],
  host: ['agent'],
};

/** @throws StartError with a line for each missing setting */
export async function checkMachine(machine: Machine, config: Config, paths: Paths): Promise<void> {
  const missing = NEEDS[machine](config, paths);
  if (missing.length > 0) throw new StartError(missing.join('\n'));
  if (machine !== 'host' || config.join === null) return;
  const { token_path } = config.join;
  // A host that has joined needs the token no more.
  if (!existsSync(paths.host_credential) || existsSync(token_path)) await readJoinToken(token_path);
}

const NEEDS: Record<Machine, (config: Config, paths: Paths) => string[]> = {
  all: ({ join, ingress_join }) => {
    const of_another = 'of another control plane: run berth';
    if (join) return [`BERTH_CONTROL_PLANE: is set, so this machine is a host ${of_another} host`];
    return ingress_join
      ? [`BERTH_CONTROL_PLANE: is set, so this machine is an ingress ${of_another} ingress`]
      : [];
  },
  'control-plane': (config, paths) => {
    const missing: string[] = [];
    if (config.database_url === null)
      missing.push('DATABASE_URL: is not set; all control planes of an installation use one PostgreSQL');
    if (config.s3 === null)
      missing.push(
        'BERTH_S3_BUCKET: is not set; all hosts and control planes of an installation use one bucket',
      );
    if (config.secret_key === null && !existsSync(paths.secret_key))
      missing.push(
        'BERTH_SECRET_KEY: is not set; all control planes of an installation have the same (openssl rand -hex 32 makes one)',
      );
    if (config.hosts_listen === null)
      missing.push('BERTH_HOSTS_LISTEN: is not set; hosts, ingresses and other control planes connect there');
    else if (config.hosts_url === null)
      missing.push(
        'BERTH_HOSTS_URL: is not set, and BERTH_HOSTS_LISTEN names no address that others can dial; expected https://HOST:PORT of this machine',
      );
    return missing;
  },
  host: ({ join, s3 }) => {
    const missing: string[] = [];
    if (join === null)
      missing.push(
        'BERTH_CONTROL_PLANE: is not set; expected https://HOST:PORT where a control plane listens to hosts',
        'BERTH_HOST_TOKEN_FILE: is not set; expected the file with the token that berth host add NAME printed',
      );
    if (s3 !== null)
      missing.push(
        'BERTH_S3_BUCKET: is set, but a host of a fleet has no bucket: the control plane signs its requests. Remove BERTH_S3_… and the credentials from this machine',
      );
    return missing;
  },
};
