/**
 * Runs a real name server (dnsmasq) on loopback whose records a test can change, for tests of the addresses to which
 * webhooks are sent.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { Resolver } from 'node:dns/promises';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir, userInfo } from 'node:os';
import { join } from 'node:path';
import { ownPort } from './own-ports.ts';
import { until } from './waiting.ts';

export type Names = Readonly<Record<string, readonly string[]>>;

export class NameServer {
  /** As `dns.setServers` takes it. */
  readonly address: string;
  readonly #process: ChildProcess;
  readonly #folder: string;
  readonly #resolver = new Resolver({ timeout: 1_000, tries: 1 });
  #version = 0;

  private constructor(process: ChildProcess, folder: string, address: string) {
    this.#process = process;
    this.#folder = folder;
    this.address = address;
    this.#resolver.setServers([address]);
  }

  /** `texts`: TXT records, which do not change. */
  static async start(names: Names, texts: Readonly<Record<string, string>> = {}): Promise<NameServer> {
    const folder = await mkdtemp(join(tmpdir(), 'berth-names-'));
    const hosts = join(folder, 'hosts');
    await writeFile(hosts, linesOf(names, versionOf(0)));
    const port = await ownPort();
    const process = spawn(
      'dnsmasq',
      [
        ...['--keep-in-foreground', '--conf-file=/dev/null', '--pid-file=', '--no-resolv', '--no-hosts'],
        ...['--listen-address=127.0.0.1', '--bind-interfaces', `--port=${port}`, '--log-facility=-'],
        ...[`--addn-hosts=${hosts}`, '--local-ttl=0', '--no-negcache', `--user=${userInfo().username}`],
        ...Object.entries(texts).map(([name, text]) => `--txt-record=${name},${text}`),
        // A name without a record does not exist.
        '--local=/example.com/',
      ],
      { stdio: 'ignore', env: { PATH: '/usr/sbin:/usr/bin:/sbin:/bin' } },
    );
    const server = new NameServer(process, folder, `127.0.0.1:${port}`);
    try {
      await server.#answersWith(0);
      return server;
    } catch (error) {
      await server.close();
      throw error;
    }
  }

  /** Replaces all records. */
  async set(names: Names): Promise<void> {
    const version = ++this.#version;
    await writeFile(join(this.#folder, 'hosts'), linesOf(names, versionOf(version)));
    this.#process.kill('SIGHUP');
    await this.#answersWith(version);
  }

  async #answersWith(version: number): Promise<void> {
    const answer = () => this.#resolver.resolve4(VERSION_NAME).catch((): string[] => []);
    await until('the name server has read its names', async () =>
      (await answer()).includes(versionOf(version)),
    );
  }

  async close(): Promise<void> {
    if (this.#process.exitCode === null && this.#process.signalCode === null) {
      this.#process.kill('SIGKILL');
      await once(this.#process, 'exit');
    }
    await rm(this.#folder, { recursive: true, force: true });
  }
}

const VERSION_NAME = 'version.lab';

function versionOf(n: number): string {
  return `10.0.${n >> 8}.${n & 0xff}`;
}

function linesOf(names: Names, version: string): string {
  const all = Object.entries({ ...names, [VERSION_NAME]: [version] });
  return all.flatMap(([name, addresses]) => addresses.map((address) => `${address} ${name}\n`)).join('');
}
