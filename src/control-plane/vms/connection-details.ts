import { AppError } from '../../shared/errors.ts';
import type { InstanceRow } from '../instances/store.ts';
import { ACCESS_PROBLEMS, remedy } from './model.ts';

/** The user of the built-in images. */
const SSH_USER = 'root';

/** How to connect by SSH. @throws AppError VM_NOT_RUNNING in every state but running; CONFLICT where nobody can log in */
export function connectionDetails(row: InstanceRow, allowed_keys: number) {
  const state = row.state ?? 'stopped';
  if (state !== 'running') throw new AppError('VM_NOT_RUNNING', { message: remedy(state, 'exec') });
  const { reason_code, reason_message } = row;
  if (reason_code !== null && ACCESS_PROBLEMS.includes(reason_code))
    throw new AppError('CONFLICT', {
      message: `SSH does not work (${reason_code}). ${reason_message}`,
      details: [{ field: 'vm.reason', issue: reason_code }],
    });
  const { ssh_host: host, ssh_port: port } = row;
  const host_keys = row.host_keys ?? [];
  return {
    host,
    port,
    user: SSH_USER,
    host_keys,
    // sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT": a port other than 22 is written [host]:port.
    known_hosts: host_keys.map((key) => `[${host}]:${port} ${key.public_key}`),
    command: `ssh -p ${port} ${SSH_USER}@${host}`,
    allowed_keys,
  };
}
