/** Where clients reach the HTTP ports of instances. Pure. */

export interface HttpEndpoint {
  /** The hostnames of ports are below it; in lower case. */
  readonly domain: string;
  readonly scheme: 'http' | 'https';
  /** Null: the scheme's own. */
  readonly port: number | null;
}

interface HttpSettings {
  readonly domain: string;
  readonly listen_port: number;
  readonly tls: boolean;
  /** The origin in front of the listener, such as `https://apps.example.com` of a proxy; null: none. */
  readonly url: string | null;
}

export function httpEndpoint({ domain, listen_port, tls, url }: HttpSettings): HttpEndpoint {
  const scheme = tls ? 'https' : 'http';
  const { protocol, port } = new URL(url ?? `${scheme}://${domain}:${listen_port}`);
  return {
    domain: domain.toLowerCase(),
    scheme: protocol === 'https:' ? 'https' : 'http',
    port: port === '' ? null : Number(port),
  };
}
