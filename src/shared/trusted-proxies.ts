/** Proxies in front (BERTH_TRUSTED_PROXIES): their `X-Forwarded-*` are believed, and their connections are those of many. */
import { BlockList, isIP } from 'node:net';

export class TrustedProxies {
  readonly #list = new BlockList();

  constructor(
    networks: readonly {
      readonly address: string;
      readonly prefix: number;
      readonly family: 'ipv4' | 'ipv6';
    }[],
  ) {
    for (const { address, prefix, family } of networks) this.#list.addSubnet(address, prefix, family);
  }

  has(address: string): boolean {
    return isIP(address) !== 0 && this.#list.check(address, isIP(address) === 6 ? 'ipv6' : 'ipv4');
  }
}
