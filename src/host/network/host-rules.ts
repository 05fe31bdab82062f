/** The chains in the host's own network namespace for guests with TAP devices: part of the table of egress-rules.ts. */
import { resolverRules } from '../vm/egress-rules.ts';
import { GUESTS } from './addresses.ts';

/** Every installation's end of its link has this prefix. */
export const LINK_PREFIX = 'berth-';

export interface HostChains {
  /** The host's end of the link to the guests. */
  readonly link: string;
  readonly resolvers: readonly string[];
  /** Interfaces that forward only since we need it; see below. */
  readonly uplinks: readonly string[];
}

/**
 * Guests reach nothing on the host but its resolvers; nothing but the host itself connects to a guest; what leaves the host has
 * the host's address.
 *
 * Where the host did not forward packets before, its uplinks do now, but for guests only: a neighbour of the host must not use it
 * as a router.
 */
export function hostChains({ link, resolvers, uplinks }: HostChains): string[] {
  const names = uplinks.map((each) => `"${each}"`).join(', ');
  return [
    '  chain output_to_guests {',
    '    type filter hook output priority filter; policy accept;',
    `    oifname "${link}" ct state new jump to_guests`,
    '  }',
    '  chain to_guests {',
    // Other users of this machine connect through the ingress, which checks who may use a port.
    '    meta skuid != 0 goto refuse',
    '  }',
    '  chain input {',
    '    type filter hook input priority filter; policy accept;',
    `    iifname "${link}" jump from_guests`,
    '  }',
    '  chain from_guests {',
    '    ct state established,related accept',
    ...resolverRules('ip', resolvers),
    '    goto refuse',
    '  }',
    '  chain forward {',
    '    type filter hook forward priority filter; policy accept;',
    // Where the way out takes smaller packets than ours.
    `    iifname "${link}" tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu`,
    `    oifname "${link}" tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu`,
    `    oifname "${link}" ct state != { established, related } drop`,
    ...(uplinks.length === 0 ? [] : [`    iifname { ${names} } oifname != "${LINK_PREFIX}*" drop`]),
    '  }',
    '  chain postrouting {',
    '    type nat hook postrouting priority srcnat; policy accept;',
    `    ip saddr ${GUESTS} oifname != "${LINK_PREFIX}*" masquerade`,
    '  }',
  ];
}
