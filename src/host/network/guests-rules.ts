/**
 * The nftables rules of the guests' network namespace. They name no VM: every TAP device is `vm…`, and its own table gives its guest
 * one address that cannot be forged (tap-rules.ts).
 */
import { isIP } from 'node:net';
import { CLOSED_IPV4 } from '../../shared/closed-networks.ts';
import { networkRule, resolverRules } from '../vm/egress-rules.ts';
import { DENIED_SET, GATE_MARK, GATEWAY, GUEST_RESOLVER, GUESTS, HOST_END, LOG_DENIED } from './addresses.ts';

/** Open connections of one guest to the outside and to the gate: tracking them takes memory of the host. */
export const CONNECTIONS_MAX = 8_192;
export const LINK = 'host';
const COUNT_CONNECTIONS = `ct state new add @connections { ip saddr ct count over ${CONNECTIONS_MAX} } goto refuse`;

export interface GuestsRules {
  /** IPv4 addresses of the host's resolvers. The first answers the guests. */
  readonly resolvers: readonly string[];
  /** The host's networks and its own addresses (`address/prefix`). */
  readonly host_networks: readonly string[];
}

/** The input of `nft -f -`, which creates or replaces the table `inet guests` in one transaction. */
export function guestsRules({ resolvers, host_networks }: GuestsRules): string {
  const [resolver] = resolvers;
  const ipv4_networks = host_networks.filter((each) => isIP(each.split('/')[0] ?? '') === 4);
  return [
    // Declare the table first, so that deleting it cannot fail.
    'table inet guests {}',
    'delete table inet guests',
    'table inet guests {',
    '  set connections { type ipv4_addr; size 65535; flags dynamic; }',
    DENIED_SET,
    '  chain prerouting {',
    '    type nat hook prerouting priority dstnat; policy accept;',
    '    iifname "vm*" jump guest_dstnat',
    '  }',
    '  chain guest_dstnat {',
    ...(resolver === undefined
      ? []
      : ['udp', 'tcp'].map(
          (protocol) => `    ip daddr ${GUEST_RESOLVER} ${protocol} dport 53 dnat ip to ${resolver}`,
        )),
    '  }',
    '  chain postrouting {',
    '    type nat hook postrouting priority srcnat; policy accept;',
    // A guest sees connections from this host as those of its gateway.
    `    oifname "vm*" ip saddr ${HOST_END} snat ip to ${GATEWAY}`,
    '  }',
    '  chain input {',
    '    type filter hook input priority filter; policy drop;',
    '    ct state established,related accept',
    `    iifname "vm*" ip saddr ${GUESTS} jump guest_input`,
    '  }',
    '  chain guest_input {',
    '    icmp type echo-request accept',
    // Only the rules of restricted guests set it.
    `    meta mark != ${GATE_MARK} goto refuse`,
    `    ${COUNT_CONNECTIONS}`,
    '    accept',
    '  }',
    '  chain forward {',
    '    type filter hook forward priority filter; policy drop;',
    `    iifname "vm*" ip saddr ${GUESTS} jump guest`,
    '    oifname "vm*" jump to_guest',
    '  }',
    '  chain guest {',
    '    ct state established,related accept',
    '    ct state invalid drop',
    ...resolverRules('ip', resolvers),
    ...ipv4_networks.flatMap(networkRule),
    `    ip daddr { ${CLOSED_IPV4.join(', ')} } goto refuse`,
    `    ${COUNT_CONNECTIONS}`,
    `    oifname "${LINK}" accept`,
    '  }',
    '  chain to_guest {',
    '    ct state established,related accept',
    `    iifname "${LINK}" ip saddr ${HOST_END} accept`,
    '  }',
    '  chain refuse {',
    `    ${LOG_DENIED}`,
    '    meta l4proto tcp counter reject with tcp reset',
    '    counter reject with icmpx admin-prohibited',
    '  }',
    '}',
    '',
  ].join('\n');
}
