/**
 * Reads the `sh` blocks of docs/operating/install.md, and types them in machines (machine.ts). Each block is taken
 * once, in order.
 *
 * `prepare` makes a machine fit for the page: it knows the other machines' names and trusts the test's certificate
 * authority. It has replacements for what does not work in a namespace:
 *
 *     systemctl, journalctl   test/support/systemctl.ts
 *     apt-get                 installs only Berth's own package, by dpkg; those of Debian are this machine's
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Machine } from './machine.ts';

const PROJECT = join(import.meta.dirname, '..', '..');
const PAGE = join(PROJECT, 'docs', 'operating', 'install.md');

/** The longest that a block may take. */
const PATIENCE_S = '300';

/** What a reader puts in place of a part of a block, and why. */
export interface Edit {
  readonly from: string;
  readonly to: string;
  readonly why: string;
}

export class InstallPage {
  readonly #blocks: string[];
  #taken = 0;

  constructor() {
    this.#blocks = [...readFileSync(PAGE, 'utf8').matchAll(/^```sh\n(.*?)^```$/gms)].map(
      ([, text = '']) => text,
    );
  }

  /** The next block, which must begin so: the test says which it expects. */
  next(begins: string): string {
    const block = this.#blocks[this.#taken] ?? '';
    assert.ok(block.startsWith(begins), `the page goes on by “${begins}”, not by\n${block}`);
    this.#taken += 1;
    return block;
  }

  get left(): readonly string[] {
    return this.#blocks.slice(this.#taken);
  }
}

/** The block with these parts replaced, each of which it must have. */
export function edited(block: string, edits: readonly Edit[]): string {
  return edits.reduce((text, { from, to }) => {
    assert.ok(text.includes(from), `the block has no “${from}” any more:\n${text}`);
    return text.replaceAll(from, to);
  }, block);
}

/** Debian's packages have started and made things by the time that apt-get returns. */
const APT_GET = `#!/bin/sh
set -eu
for word; do
  case $word in
    install | -*) ;;
    ./*.deb) dpkg --install --force-depends --force-unsafe-io "$word" ;;
    *) dpkg --status "$word" > /dev/null ;;
  esac
  case $word in
    postgresql-15)
      [ -e /etc/postgresql/15/main ] || pg_createcluster 15 main
      install -d -o postgres -g postgres -m 2775 /run/postgresql ;;
    etcd-server) install -d -o etcd -g etcd -m 700 /var/lib/etcd/default ;;
    haproxy)
      install -d -o haproxy -g haproxy -m 2775 /run/haproxy
      systemctl start haproxy ;;
  esac
done
`;

export interface Surroundings {
  /** Lines of /etc/hosts, in place of DNS. */
  readonly hosts: string;
  /** Of the authority that has signed the fleet's public certificates. */
  readonly authority: string;
  /** The package's path. */
  readonly deb: string;
}

/** Makes a machine one of the page's: Debian with systemd, in whose folder /root the package lies. */
export async function prepare(machine: Machine, { hosts, authority, deb }: Surroundings): Promise<void> {
  const systemctl = join(import.meta.dirname, 'systemctl.ts');
  for (const name of ['systemctl', 'journalctl'])
    await machine.write(
      `/usr/local/sbin/${name}`,
      `#!/bin/sh\nexec ${process.execPath} ${systemctl} ${name} "$@"\n`,
      0o755,
    );
  await machine.write('/usr/local/sbin/apt-get', APT_GET, 0o755);
  await machine.write('/etc/hosts', `127.0.0.1 localhost\n${hosts}`);
  await machine.write('/root/authority.pem', authority);
  await machine.sh(`cat /root/authority.pem >> /etc/ssl/certs/ca-certificates.crt
    mkdir -p /run/systemd/system
    ln -s ${deb} /root/berth_0.1.0_amd64.deb`);
}

/** Types a block in /root, as a reader would, and stops at the first command that fails. @returns what it prints */
export async function type(machine: Machine, block: string, input = ''): Promise<string> {
  try {
    return await machine.run('timeout', [PATIENCE_S, 'sh', '-euc', `cd /root\n${block}`], { input });
  } catch (error) {
    const { stdout = '', stderr = '' } = error as { stdout?: string; stderr?: string };
    throw new Error(`on ${machine.name}:\n${block}\nprinted:\n${stdout}${stderr}`, { cause: error });
  }
}
