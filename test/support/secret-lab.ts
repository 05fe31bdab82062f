/**
 * Extends the egress lab with HTTPS servers that the guest's secrets may be sent to. Their certificates come from a
 * certificate authority of the lab, which the egress proxy trusts.
 */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { text } from 'node:stream/consumers';
import { makeAuthority } from '../../src/control-plane/secrets/make-authority.ts';
import type { GuestSecret } from '../../src/protocol/egress-proxy-messages.ts';
import type { SecretsAuthority } from '../../src/protocol/host-types.ts';
import type { EgressPolicy } from '../../src/shared/egress-policy.ts';
import { EgressLab } from './egress-lab.ts';
import { endAll, inNamespace } from './egress-outside.ts';
import { serverCertificate } from './test-certificates.ts';
import { until } from './waiting.ts';

const SERVER = join(import.meta.dirname, 'secret-web-server.ts');
/** The names of egress-outside.ts that have these servers. */
export const PLACES = {
  'api.test': '203.0.113.71',
  'other.test': '203.0.113.72',
  'expired.test': '203.0.113.73',
  'selfsigned.test': '203.0.113.74',
  'wrongname.test': '203.0.113.75',
} as const;
const [FIRST, LAST] = ['203.0.113.71', '203.0.113.79'];
const REDIRECTS = `
table ip secrets {
  chain prerouting {
    type nat hook prerouting priority dstnat; policy accept;
    ip daddr ${FIRST}-${LAST} tcp dport { 443, 8443 } redirect to :8444
  }
}
`;

export interface GotRequest {
  readonly sni: string;
  readonly version: string;
  readonly method: string;
  readonly url: string;
  /** Names and values in turn. */
  readonly headers: readonly string[];
  readonly body: string;
  readonly trailers: readonly string[];
}

/** The servers, in a namespace that plays the internet. */
export class SecretServers {
  readonly folder = mkdtempSync(join(tmpdir(), 'berth-secrets-'));
  /** Whom a client of them trusts. */
  readonly roots = join(this.folder, 'roots.pem');
  readonly got: GotRequest[] = [];
  readonly #children: ChildProcess[] = [];

  async prepare(): Promise<void> {
    const { folder } = this;
    // The proxy is another user.
    chmodSync(folder, 0o755);
    const internet = await makeAuthority('internet');
    writeFileSync(this.roots, internet.certificate);
    const of = {
      'api.test': serverCertificate('api.test', internet),
      'other.test': serverCertificate('other.test', internet),
      'expired.test': serverCertificate('expired.test', internet, Date.now() - 60_000),
      'selfsigned.test': serverCertificate('selfsigned.test', null),
      'wrongname.test': serverCertificate('another.test', internet),
    };
    for (const [name, made] of Object.entries(of))
      writeFileSync(join(folder, `${name}.json`), JSON.stringify(await made));
  }

  /** A repository that api.test serves to `user`, with the password of the variable GIT_PASSWORD of {@link serve}. */
  makeRepository(): void {
    const source = join(this.folder, 'source');
    const bare = join(this.folder, 'repo.git');
    const git = (...args: string[]) =>
      execFileSync('git', ['-c', 'user.name=T', '-c', 'user.email=t@example.org', ...args], {
        stdio: 'pipe',
      });
    git('init', '-q', source);
    git('-C', source, 'commit', '-q', '--allow-empty', '-m', 'first');
    git('clone', '-q', '--bare', source, bare);
    git('-C', bare, 'update-server-info');
  }

  /** `path`: of the namespace. */
  async serve(path: string, environment: Record<string, string> = {}): Promise<void> {
    inNamespace(path, 'nft', ['-f', '-'], REDIRECTS);
    const server = spawn('nsenter', [`--net=${path}`, '--', process.execPath, SERVER, this.folder], {
      stdio: ['ignore', 'pipe', 'inherit'],
      env: { ...process.env, ...environment },
    });
    this.#children.push(server);
    createInterface(server.stdout).on('line', (line) => this.got.push(JSON.parse(line) as GotRequest));
    await until('the servers listen', () => this.got.some(({ method }) => method === 'READY'));
    this.got.length = 0;
  }

  async close(): Promise<void> {
    await endAll(this.#children);
    rmSync(this.folder, { recursive: true, force: true });
  }
}

export class SecretLab {
  readonly #servers = new SecretServers();
  /** What the guest trusts. */
  readonly trusted = join(this.folder, 'berth.pem');
  #authority: SecretsAuthority | undefined;
  #lab: EgressLab | null = null;

  static async open(environment: Record<string, string> = {}): Promise<SecretLab> {
    const lab = new SecretLab();
    try {
      await lab.#build(environment);
      return lab;
    } catch (error) {
      await lab.close();
      throw error;
    }
  }

  get folder(): string {
    return this.#servers.folder;
  }
  makeRepository(): void {
    this.#servers.makeRepository();
  }
  get got(): GotRequest[] {
    return this.#servers.got;
  }
  get egress(): EgressLab {
    if (!this.#lab) throw new Error('the lab is not open');
    return this.#lab;
  }

  async #build(environment: Record<string, string>): Promise<void> {
    const { folder } = this;
    await this.#servers.prepare();
    this.#authority = await makeAuthority('lab');
    writeFileSync(this.trusted, this.#authority.certificate);
    const hosts = Object.entries(PLACES).map(([name, address]) => `${address} ${name}\n`);
    writeFileSync(join(folder, 'hosts'), `127.0.0.1 localhost\n203.0.113.66 evil.test\n${hosts.join('')}`);
    this.#lab = await EgressLab.open(this.#servers.roots);
    await this.#servers.serve(this.#lab.path('internet'), environment);
  }

  async allow(policy: EgressPolicy, secrets: readonly GuestSecret[]): Promise<void> {
    await this.egress.allow(policy, secrets, this.#authority);
  }

  /** Starts a program as the guest, or as its neighbour, which finds names in its hosts file, and trusts Berth's authority alone. */
  start(
    command: string,
    args: readonly string[],
    environment: Record<string, string> = {},
    who: 'guest' | 'neighbour' = 'guest',
  ): ChildProcess {
    const mounted = `mount --bind ${join(this.folder, 'hosts')} /etc/hosts && exec "$@"`;
    const variables = {
      NODE_EXTRA_CA_CERTS: this.trusted,
      REQUESTS_CA_BUNDLE: this.trusted,
      SSL_CERT_FILE: this.trusted,
      CURL_CA_BUNDLE: this.trusted,
      GIT_SSL_CAINFO: this.trusted,
      GIT_TERMINAL_PROMPT: '0',
      no_proxy: '*',
      ...environment,
    };
    const set = Object.entries(variables).map(([name, value]) => `${name}=${value}`);
    const program = ['env', ...set, command, ...args];
    return this.egress.spawn('unshare', ['--mount', 'sh', '-c', mounted, 'sh', ...program], who);
  }

  async run(
    command: string,
    args: readonly string[],
    input: string | Buffer = '',
  ): Promise<{ said: string; status: number | null }> {
    const child = this.start(command, args);
    child.stdin?.on('error', () => undefined);
    child.stdin?.end(input);
    const closed = once(child, 'close');
    const said = child.stdout ? await text(child.stdout) : '';
    await closed;
    return { said, status: child.exitCode };
  }

  curl(...args: readonly string[]) {
    return this.run('curl', [
      '--silent',
      '--show-error',
      '--stderr',
      '-',
      '--noproxy',
      '*',
      '--max-time',
      '20',
      ...args,
    ]);
  }

  async close(): Promise<void> {
    await this.#lab?.close();
    await this.#servers.close();
  }
}

/** The values of a field that a server got. */
export function fieldOf({ headers }: GotRequest, name: string): string[] {
  return headers.filter((_, at) => at % 2 === 1 && headers[at - 1]?.toLowerCase() === name);
}
