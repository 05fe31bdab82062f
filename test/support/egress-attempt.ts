/** Defines an attempt of a guest to bypass its egress policy (`Attempt`), and makes attempts by TCP and UDP. */

export interface Attempt {
  readonly name: string;
  readonly kind: 'tcp' | 'udp' | 'icmp' | 'raw';
  readonly address: string;
  /** Of raw: the protocol. */
  readonly port: number;
  readonly send: readonly Buffer[];
  /** In mode open a server sees it, or it is answered: else its failure proves nothing. */
  readonly reaches_in_open: boolean;
  /** No answer may contain this. */
  readonly forbidden?: Buffer;
}

export const GOOD = '203.0.113.10';
export const EVIL = '203.0.113.66';

export function text(...parts: string[]): Buffer[] {
  return parts.map((part) => Buffer.from(part, 'latin1'));
}

export const tcp = (
  name: string,
  address: string,
  port: number,
  send: readonly Buffer[] = [],
  open = true,
): Attempt => ({
  name,
  kind: 'tcp',
  address,
  port,
  send,
  reaches_in_open: open,
});
export const udp = (
  name: string,
  address: string,
  port: number,
  send: readonly Buffer[],
  open = true,
): Attempt => ({
  ...tcp(name, address, port, send, open),
  kind: 'udp',
});
