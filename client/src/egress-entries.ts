/** Entries of an egress list beside the destinations that a VM was denied, for programs that offer to allow one. */
import type { DeniedDestination } from './generated.ts';

type Destination = Pick<DeniedDestination, 'name' | 'address' | 'port'>;

/** A name without a port means these. */
const USUAL_PORTS: readonly number[] = [80, 443];

/** The entry that allows it. */
export function entryFor({ name, address, port }: Destination): string {
  const host = name ?? address ?? '';
  const usual = name !== undefined && port !== undefined && USUAL_PORTS.includes(port);
  return usual ? host : withPort(host, port);
}

/** For people: `example.com:443`, `[2001:db8::1]:443`. */
export function destinationText({ name, address, port }: Destination): string {
  return withPort(name ?? address ?? '', port);
}

function withPort(host: string, port: number | undefined): string {
  if (port === undefined) return host;
  return host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`;
}

/**
 * Whether an entry of the list is about it: its name, or one of the form `*.example.com` above it; otherwise its address.
 * @param allow in the form that the API answers
 */
export function isListed(allow: readonly string[], denied: Destination): boolean {
  const { name, address, port } = denied;
  if (name === undefined) return allow.includes(entryFor(denied)) || allow.includes(address ?? '');
  return allow.some((entry) => {
    const [host = '', its_port] = entry.split(':');
    const covers = host.startsWith('*.') ? name.endsWith(host.slice(1)) : name === host;
    const ports = its_port === undefined ? USUAL_PORTS : [Number(its_port)];
    return covers && (port === undefined || ports.includes(port));
  });
}
