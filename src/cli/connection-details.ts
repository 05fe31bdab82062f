/**
 * Validates a server's connection details before they become a file name, ssh arguments and lines of ssh's settings. A server
 * must not influence this machine.
 */
import type { ConnectionDetails, Instance } from '../../client/src/berth.ts';
import { CommandError } from './command-error.ts';
import { isInstanceName } from './numbers.ts';

/** The login of Berth's images. */
export const SSH_USER = 'root';
const ID = /^inst_[0-9a-z]{26}$/;
const USER = /^[a-z_][a-z0-9_-]{0,31}$/;
/** A name or an address that ssh neither takes for an option nor expands. */
const HOST = /^[a-z0-9:][a-z0-9:._-]{0,254}$/i;
const LINE = /^[\x20-\x7e]+$/;

export type Details = Pick<ConnectionDetails, 'host' | 'port' | 'user' | 'known_hosts'>;

/** Of an instance in any state: its address is permanent, and its host keys are those of its last boot. */
export function permanentDetails({ ssh: { host, port }, host_keys }: Instance): Details {
  return {
    host,
    port,
    user: SSH_USER,
    // sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT": a port other than 22 is written [host]:port.
    known_hosts: host_keys.map(({ public_key }) => `[${host}]:${port} ${public_key}`),
  };
}

/** @throws CommandError when the details are not plain */
export function checkedDetails<T extends Details>({ id, name }: Instance, details: T): T {
  const { host, port, user, known_hosts } = details;
  const is_harmless =
    ID.test(id) &&
    isInstanceName(name) &&
    USER.test(user) &&
    HOST.test(host) &&
    Number.isInteger(port) &&
    known_hosts.every((line) => LINE.test(line));
  if (is_harmless) return details;
  throw new CommandError(
    'the server sent connection details that are not a plain address; they are not used',
  );
}
