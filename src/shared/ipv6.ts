/**
 * The first `count` of the eight groups of an IPv6 address, in hexadecimal without leading zeros (RFC 5952, section 4.1),
 * joined by colons: the prefix of a network. The address must be valid.
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
