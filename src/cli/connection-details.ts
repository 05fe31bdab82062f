/**
 * Validates a server's connection details before they become a file name, ssh arguments and lines of ssh's settings. A server
 * must not influence this machine.
 */
import type { ConnectionDetails, Instance } from '../../client/src/berth.ts';
import { CommandError } from './command-error.ts';
import { isInstanceName } from './numbers.ts';

const ID = /^inst_[0-9a-z]{26}$/;
const USER = /^[a-z_][a-z0-9_-]{0,31}$/;
/** A name or an address that ssh neither takes for an option nor expands. */
const HOST = /^[a-z0-9:][a-z0-9:._-]{0,254}$/i;
const LINE = /^[\x20-\x7e]+$/;

/** @throws CommandError when the details are not plain */
export function checkedDetails({ id, name }: Instance, details: ConnectionDetails): ConnectionDetails {
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
