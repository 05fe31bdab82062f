/**
 * Parses, normalises and evaluates egress policies: a mode, and a list of entries that apply in mode `allow`. Pure.
 *
 * An entry is a name (`example.com`), all names below one (`*.example.com`), an address or a network, each with an
 * optional port. A name without a port means ports 80 and 443; an address or network without one means every port and
 * protocol. Stored entries are normalised: names in lower case and by IDNA, without a trailing dot; networks by RFC
 * 5952, beginning at the network's own address.
 */
import { domainToASCII } from 'node:url';
import ipaddr from 'ipaddr.js';
import { AppError, invalid } from './errors.ts';
import { canonicalCidr, touchesClosed } from './networks.ts';

export const EGRESS_MODES = ['open', 'deny', 'allow'] as const;
export type EgressMode = (typeof EGRESS_MODES)[number];

export const EGRESS_ENTRIES_MAX = 100;
/** A name of 253 characters with `*.` and a port; nothing valid is longer. */
export const EGRESS_ENTRY_LENGTH_MAX = 300;

export interface EgressPolicy {
  readonly mode: EgressMode;
  /** Entries in their stored form. */
  readonly allow: readonly string[];
}

export interface NameEntry {
  readonly kind: 'name';
  readonly name: string;
  /** Every name below `name`, and not `name` itself. */
  readonly below: boolean;
  readonly port: number | null;
}
export interface NetworkEntry {
  readonly kind: 'network';
  readonly family: 4 | 6;
  /** `address/prefix`. */
  readonly cidr: string;
  readonly port: number | null;
}
export type EgressEntry = NameEntry | NetworkEntry;

/** The entries in their stored form, each once. @throws AppError INVALID_REQUEST naming the first that cannot be kept */
export function checkedEntries(given: readonly string[]): readonly string[] {
  const kept = given.map((text, index) => {
    const entry = parseEntry(text);
    if (typeof entry === 'string') throw refusedEntry(text, index, entry);
    return entryText(entry);
  });
  const allow = [...new Set(kept)];
  if (allow.length > EGRESS_ENTRIES_MAX) {
    throw invalid('egress.allow', `has at most ${EGRESS_ENTRIES_MAX} entries`);
  }
  return allow;
}

function refusedEntry(text: string, index: number, problem: string): AppError {
  const shown = JSON.stringify(text.slice(0, 80));
  return new AppError('INVALID_REQUEST', {
    message: `egress.allow: ${shown} ${problem}`,
    details: [{ field: `egress.allow.${index}`, issue: `${shown} ${problem}` }],
  });
}

/** The entry, or why it is none (for the caller; the sentence's subject is the entry). */
export function parseEntry(text: string): EgressEntry | string {
  if (text.length > EGRESS_ENTRY_LENGTH_MAX) return 'is too long';
  if (text === '*') return 'allows everything; use mode open instead';
  const parts = splitPort(text);
  if (parts === null)
    return 'is no name, address or network; examples: example.com, *.example.com:8443, 203.0.113.0/24, [2001:db8::1]:443';
  const { host, port_text } = parts;
  const port = port_text === null ? null : portOf(port_text);
  if (port === undefined) return 'has no valid port; it is a number from 1 to 65535';
  const cidr = canonicalCidr(host);
  return cidr === null ? nameEntry(host, port) : networkEntry(cidr, port);
}

/** `host`, `host:port`, `[v6]`, `[v6]:port` and `v6`; null for anything else. */
function splitPort(text: string): { readonly host: string; readonly port_text: string | null } | null {
  const bracketed = /^\[([^[\]]*)\](?::([^:]*))?$/.exec(text);
  if (bracketed) {
    const host = bracketed[1] ?? '';
    return host.includes(':') ? { host, port_text: bracketed[2] ?? null } : null;
  }
  const colons = text.split(':').length - 1;
  if (colons !== 1) return { host: text, port_text: null };
  const at = text.indexOf(':');
  return { host: text.slice(0, at), port_text: text.slice(at + 1) };
}

function portOf(text: string): number | undefined {
  if (!/^[1-9][0-9]{0,4}$/.test(text)) return undefined;
  const port = Number(text);
  return port <= 65_535 ? port : undefined;
}

function networkEntry(cidr: string, port: number | null): EgressEntry | string {
  if (cidr.endsWith('/0')) return 'allows everything; use mode open instead';
  if (touchesClosed(cidr)) return 'is or contains a private or special address, which no instance may reach';
  return { kind: 'network', family: cidr.includes(':') ? 6 : 4, cidr, port };
}

const NO_NAME = 'is no valid name; examples: example.com, *.example.com';

function nameEntry(host: string, port: number | null): EgressEntry | string {
  if (/[:/]/.test(host))
    return host.includes('://') ? 'is a URL; give its host name only' : 'is no address or network';
  const below = host.startsWith('*.');
  const name = canonicalName(below ? host.slice(2) : host);
  if (name === null)
    return host.includes('*') ? 'has a * in the wrong place; only *.example.com is possible' : NO_NAME;
  if (isSpecialName(name)) return 'is a name of this machine or its network, which no instance may reach';
  if (!name.includes('.')) return 'is no full name; examples: example.com, *.example.com';
  return { kind: 'name', name, below, port };
}

/**
 * A host name in lower case, as A-labels, without a trailing dot; null when it is none. A name whose last label is a number is
 * none: programs read it as an address (`127.1`, `0x7f.1`).
 */
export function canonicalName(text: string): string | null {
  const without_dot = text.endsWith('.') ? text.slice(0, -1) : text;
  // Only names with other letters need IDNA, which also accepts forms that are no names (`a%62c`).
  const is_ascii = /^[\x21-\x7e]*$/.test(without_dot);
  const name = (is_ascii ? without_dot : idnaName(without_dot)).toLowerCase();
  if (name.length === 0 || name.length > 253) return null;
  const labels = name.split('.');
  if (!labels.every((label) => /^(?!-)[a-z0-9_-]{1,63}(?<!-)$/.test(label))) return null;
  const last = labels.at(-1) ?? '';
  return /^([0-9]+|0x[0-9a-f]*)$/.test(last) ? null : name;
}

/** A name that a program sent: only ASCII is possible there. */
export function sentName(text: string): string | null {
  return /^[\x21-\x7e]*$/.test(text) ? canonicalName(text) : null;
}

/** A name with other letters than ASCII's as A-labels; '' when it is none. Node cuts off what is no part of a URL's host. */
export function idnaName(text: string): string {
  return /[\s%/\\?#@:]/.test(text) ? '' : domainToASCII(text);
}

function isSpecialName(name: string): boolean {
  return /(^|\.)(localhost|local|localdomain|in-addr\.arpa|ip6\.arpa)$/.test(name);
}

/** The stored form. */
export function entryText(entry: EgressEntry): string {
  const port = entry.port === null ? '' : `:${entry.port}`;
  if (entry.kind === 'name') return `${entry.below ? '*.' : ''}${entry.name}${port}`;
  const single = entry.cidr.endsWith(entry.family === 4 ? '/32' : '/128');
  const host = single ? entry.cidr.slice(0, entry.cidr.lastIndexOf('/')) : entry.cidr;
  return entry.family === 6 && entry.port !== null ? `[${host}]${port}` : `${host}${port}`;
}

/** The entries of a policy that apply now: those of mode `allow`. Entries that a newer version wrote are skipped. */
export function activeEntries({ mode, allow }: EgressPolicy): readonly EgressEntry[] {
  if (mode !== 'allow') return [];
  return allow.map(parseEntry).filter((entry) => typeof entry !== 'string');
}

/** The ports of a name entry. */
export function portsOf({ port }: NameEntry): readonly number[] {
  return port === null ? [80, 443] : [port];
}

/** Whether an entry is about `name`, which is in the form of {@link canonicalName}. */
export function coversName(entry: NameEntry, name: string): boolean {
  return entry.below ? name.endsWith(`.${entry.name}`) : name === entry.name;
}

/** Whether `name` may be reached on `port`; without a port: whether it may be looked up. */
export function allowsName(entries: readonly EgressEntry[], name: string, port: number | null): boolean {
  return entries.some(
    (entry) =>
      entry.kind === 'name' && coversName(entry, name) && (port === null || portsOf(entry).includes(port)),
  );
}

/** Whether `address` is allowed as an address on `port`. */
export function allowsAddress(entries: readonly EgressEntry[], address: string, port: number): boolean {
  if (!ipaddr.isValid(address)) return false;
  const parsed = ipaddr.process(address);
  return entries.some((entry) => {
    if (entry.kind !== 'network' || (entry.port !== null && entry.port !== port)) return false;
    const [network, prefix] = ipaddr.parseCIDR(entry.cidr);
    return network.kind() === parsed.kind() && parsed.match(network, prefix);
  });
}
