/** Links that lead to the machine that opens them. A server makes such links while its BERTH_PUBLIC_URL is not set. */

const LOCAL = /^(localhost|127\.\d+\.\d+\.\d+|0\.0\.0\.0|\[::1?\])$/;

/** Why others cannot open the link, and what to do; undefined: they can, as far as it shows. */
export function localLinkWarning(link: string): string | undefined {
  if (!URL.canParse(link)) return undefined;
  const { hostname, origin } = new URL(link);
  if (!LOCAL.test(hostname)) return undefined;
  return `This link opens only on the server itself, because it starts with ${origin}. Set BERTH_PUBLIC_URL on the server to an address that others reach, and make a new link.`;
}
