/**
 * Compares the destinations that a VM was denied with the allow list of its egress policy. The console and the command
 * line use it to offer "allow this destination".
 *
 * `entryFor` returns the entry that would allow a destination. `isListed` tells whether an entry covers it already: by
 * name, wildcard, address or network. `destinationText` formats it for people. An entry with a name and no port means
 * 80 and 443.
 */
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
 * Whether the list has it already: its name, or one of the form `*.example.com` above it; otherwise its address, or a network around it.
 * @param allow in the form that the API answers
 */
export function isListed(allow: readonly string[], { name, address = '', port }: Destination): boolean {
  return allow.some((entry) =>
    name === undefined ? coversAddress(entry, address, port) : coversName(entry, name, port),
  );
}

function coversName(entry: string, name: string, port: number | undefined): boolean {
  const [host = '', its_port] = entry.split(':');
  const covers = host.startsWith('*.') ? name.endsWith(host.slice(1)) : name === host;
  const ports = its_port === undefined ? USUAL_PORTS : [Number(its_port)];
  return covers && (port === undefined || ports.includes(port));
}

/** `203.0.113.0/24:443`, `[2001:db8::/32]:443`; address and port may stand alone. */
const ADDRESS_ENTRY = /^(?:\[([^\]]+)\]|([^:]+)|(.+))(?::(\d+))?$/;

function coversAddress(entry: string, address: string, port: number | undefined): boolean {
  const [, bracketed, plain, several_colons, its_port] = ADDRESS_ENTRY.exec(entry) ?? [];
  const [network = '', prefix] = (bracketed ?? plain ?? several_colons ?? '').split('/');
  const [bits, wanted] = [addressBits(network), addressBits(address)];
  if (bits === undefined || wanted?.length !== bits.length) return false;
  const same = Number(prefix ?? bits.length);
  return (
    bits.slice(0, same) === wanted.slice(0, same) && (its_port === undefined || Number(its_port) === port)
  );
}

/** The bits of an address as text; undefined for anything else. */
function addressBits(text: string): string | undefined {
  if (/^\d+(\.\d+){3}$/.test(text)) return binary(text.split('.'), 10, 8);
  if (!/^[0-9a-f]*:[0-9a-f:]*$/.test(text)) return undefined;
  const [before = '', after = ''] = text.split('::');
  const [high, low] = [before, after].map((part) => part.split(':').filter(Boolean)) as [string[], string[]];
  return binary([...high, ...Array<string>(8 - high.length - low.length).fill('0'), ...low], 16, 16);
}

function binary(numbers: readonly string[], base: number, width: number): string {
  return numbers.map((each) => Number.parseInt(each, base).toString(2).padStart(width, '0')).join('');
}
