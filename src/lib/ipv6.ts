/**
 * The first `count` of the eight groups of an IPv6 address, in hexadecimal without leading zeros (RFC 5952, section 4.1),
 * joined by colons: what a network of 16 bits a group has in common. The address is a valid one.
 */
export function firstGroups(address: string, count: number): string {
  const [head = '', tail] = address.split('::');
  const first = head.split(':').filter((part) => part !== '');
  const last = (tail ?? '').split(':').filter((part) => part !== '');
  const zeros = tail === undefined ? 0 : Math.max(0, 8 - first.length - last.length);
  return [...first, ...Array<string>(zeros).fill('0'), ...last]
    .slice(0, count)
    .map((part) => Number.parseInt(part, 16).toString(16))
    .join(':');
}
