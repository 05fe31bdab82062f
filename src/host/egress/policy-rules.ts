/**
 * Makes the nftables rules of VMs with restricted egress or secrets, as input of `nft -f -`. Pure. These rules have a
 * table of their own beside the rules for all guests (network/packet-rules.ts), and can only refuse: a packet that they
 * let pass may still be refused there.
 *
 * Invariants:
 * - Every VM is restricted except those that are known to be open: a VM whose assignment is gone may run on for a
 *   moment.
 * - Each packet is decided by the present rules, so a change applies to open connections too.
 * - Applying the text replaces the table in one transaction. The kernel keeps the table while the agent is down.
 */
import { isIPv4 } from 'node:net';
import type { GuestPolicy } from '../../protocol/egress-proxy-messages.ts';
import { assert } from '../../shared/assert.ts';
import { activeEntries, type NetworkEntry, portsOf } from '../../shared/egress-policy.ts';
import { networkWithin } from '../../shared/networks.ts';
import { DENIED_SET, LOG_DENIED, PROXY_MARK, perGuest } from '../network/addresses.ts';
import { RESOLVED_MARK, resolvedAddressRules } from './resolved-addresses.ts';

export interface PolicyRulesOptions {
  readonly guests: readonly GuestPolicy[];
  /** The interfaces of VMs, as nft matches them: `vm*`. */
  readonly interfaces: string;
  readonly relay_port: number;
  readonly names_port: number;
}

/** Of one VM at the proxy: packets with look-ups, and new connections. More are dropped, and sent again by the guest's kernel. */
const BOUND_LOOK_UPS = 'update @look_ups { ip saddr limit rate over 300/second burst 1000 packets } drop';
const BOUND_CONNECTIONS = 'update @opened { ip saddr limit rate over 300/second burst 1000 packets } drop';

const EGRESS_TABLE = 'berth_egress';
const HTTPS_PORT = 443;
/** The routing table of marked packets. */
export const PROXY_ROUTES = 6265;

/**
 * A new TCP connection of a VM with secrets to port 443 goes to the proxy, whatever the VM's mode, and remains there. Connections that
 * were made before its first secret pass as they did.
 *
 * A restricted VM's packets pass in this order:
 *   to an allowed network, and answers to connections from outside      pass
 *   look-ups (port 53)                                                  to the proxy's resolver
 *   TCP to a port of an allowed name, where the first packet went to
 *     an address that an allowed name has resolved to                   to the proxy, with the original destination (tproxy)
 *   everything else, and look-ups or connections without a proxy        logged and refused
 * So a connection that the proxy could only refuse is refused at its first packet, before anything accepts it.
 */
export function policyRules(options: PolicyRulesOptions): string {
  const { interfaces, relay_port, names_port } = options;
  const from = `iifname "${interfaces}" ip saddr != @open`;
  return [
    resolvedAddressRules(interfaces),
    `table inet ${EGRESS_TABLE} {}`,
    `delete table inet ${EGRESS_TABLE}`,
    `table inet ${EGRESS_TABLE} {`,
    ...sets(options.guests),
    '  chain allowed {',
    '    ct direction reply accept',
    '    ip saddr . ip daddr @networks accept',
    '    meta l4proto { tcp, udp } ip saddr . ip daddr . th dport @ports accept',
    '  }',
    '  chain mangle {',
    '    type filter hook prerouting priority mangle; policy accept;',
    `    iifname "${interfaces}" meta l4proto tcp jump intercept`,
    `    ${from} jump lead`,
    '  }',
    '  chain intercept {',
    `    ip saddr @with_secrets tcp dport ${HTTPS_PORT} ct direction original ct state new jump intercept_new`,
    // Until they end, also when the last secret is removed.
    `    meta l4proto tcp ct direction original ct mark ${PROXY_MARK} tproxy ip to :${relay_port} meta mark set ${PROXY_MARK} accept`,
    '  }',
    '  chain intercept_new {',
    '    ip saddr @open goto take',
    `    meta mark ${RESOLVED_MARK} ip saddr . th dport @relayed goto take`,
    '    ip saddr . ip daddr @networks goto take',
    '    ip saddr . ip daddr . th dport @ports goto take',
    '  }',
    '  chain take {',
    `    ${BOUND_CONNECTIONS}`,
    `    ct mark set ${PROXY_MARK}`,
    '  }',
    '  chain lead {',
    '    jump allowed',
    // All guests share the proxy.
    `    meta l4proto udp th dport 53 ${BOUND_LOOK_UPS}`,
    `    meta l4proto tcp ct state new th dport != 53 meta mark != ${RESOLVED_MARK} return`,
    `    meta l4proto tcp ct state new ${BOUND_CONNECTIONS}`,
    `    meta l4proto { tcp, udp } th dport 53 meta mark set ${PROXY_MARK} accept`,
    `    meta l4proto tcp ip saddr . th dport @relayed tproxy ip to :${relay_port} meta mark set ${PROXY_MARK} accept`,
    '  }',
    '  chain nat {',
    // Before the chain that leads look-ups of other VMs to the host's resolvers.
    '    type nat hook prerouting priority dstnat - 5; policy accept;',
    `    ${from} jump names`,
    '  }',
    '  chain names {',
    '    jump allowed',
    `    meta l4proto { tcp, udp } th dport 53 redirect to :${names_port}`,
    '  }',
    '  chain forward {',
    '    type filter hook forward priority filter - 5; policy accept;',
    `    ${from} jump decide`,
    // What belongs to a connection of the VM that was allowed before.
    `    oifname "${interfaces}" ip daddr != @open ct direction reply jump answers`,
    '  }',
    '  chain answers {',
    '    ip daddr . ip saddr @networks accept',
    '    meta l4proto { tcp, udp } ip daddr . ip saddr . th sport @ports accept',
    '    counter drop',
    '  }',
    '  chain input {',
    '    type filter hook input priority filter - 5; policy accept;',
    `    ${from} meta mark != ${PROXY_MARK} jump decide`,
    '  }',
    '  chain decide {',
    '    jump allowed',
    `    ${LOG_DENIED}`,
    '    meta l4proto tcp counter reject with tcp reset',
    '    counter reject with icmpx admin-prohibited',
    '  }',
    '}',
    '',
  ].join('\n');
}

function sets(guests: readonly GuestPolicy[]): string[] {
  for (const { address } of guests) assert(isIPv4(address), 'a VM has an IPv4 address');
  const open = guests.filter(({ policy }) => policy.mode === 'open');
  const restricted = guests.filter(({ policy }) => policy.mode !== 'open');
  const with_secrets = guests.filter(({ secrets }) => secrets.length > 0);
  const addresses = (all: readonly GuestPolicy[]) => elements(all.map(({ address }) => address));
  return [
    `  set open { type ipv4_addr; ${addresses(open)} }`,
    `  set networks { type ipv4_addr . ipv4_addr; flags interval; ${elements(networks(restricted, false))} }`,
    `  set ports { type ipv4_addr . ipv4_addr . inet_service; flags interval; ${elements(networks(restricted, true))} }`,
    `  set relayed { type ipv4_addr . inet_service; ${elements(relayed(restricted))} }`,
    `  set with_secrets { type ipv4_addr; ${addresses(with_secrets)} }`,
    perGuest('look_ups'),
    perGuest('opened'),
    DENIED_SET,
  ];
}

function elements(all: readonly string[]): string {
  return all.length === 0 ? '' : `elements = { ${[...new Set(all)].join(', ')} };`;
}

function networks(guests: readonly GuestPolicy[], with_port: boolean): string[] {
  return guests.flatMap(({ address, policy }) => {
    const entries = activeEntries(policy).filter(
      (entry): entry is NetworkEntry =>
        entry.kind === 'network' && entry.family === 4 && (entry.port !== null) === with_port,
    );
    // An interval set refuses a network inside of another.
    const widest = entries.filter(
      ({ cidr, port }) =>
        !entries.some(
          (other) => other.cidr !== cidr && other.port === port && networkWithin(cidr, [other.cidr]),
        ),
    );
    return widest.map(({ cidr, port }) => `${address} . ${cidr}${port === null ? '' : ` . ${port}`}`);
  });
}

/** The ports of allowed names. */
function relayed(guests: readonly GuestPolicy[]): string[] {
  return guests.flatMap(({ address, policy }) =>
    activeEntries(policy)
      .flatMap((entry) => (entry.kind === 'name' ? portsOf(entry) : []))
      .map((port) => `${address} . ${port}`),
  );
}
