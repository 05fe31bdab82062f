/**
 * Starts an installation beside an internet with HTTPS servers. The installation resolves the servers' names and trusts
 * their certificates.
 */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { EgressOutside, NAME_SERVER } from './egress-outside.ts';
import { Installation } from './installation.ts';
import { SecretServers } from './secret-lab.ts';

const MAIN = join(import.meta.dirname, '../../src/main.ts');
const ROOTS = '/etc/ssl/certs/ca-certificates.crt';

export interface SecretInstallation {
  readonly berth: Installation;
  readonly servers: SecretServers;
  readonly close: () => Promise<void>;
}

/** `environment`: of the servers. */
export async function startBesideServers(
  environment: Record<string, string> = {},
): Promise<SecretInstallation> {
  const folder = mkdtempSync(join(tmpdir(), 'berth-names-'));
  const servers = new SecretServers();
  const opened: { outside?: EgressOutside; berth?: Installation } = {};
  const close = async () => {
    await opened.berth?.dispose();
    await servers.close();
    await opened.outside?.close();
    rmSync(folder, { recursive: true, force: true });
  };
  try {
    opened.outside = await EgressOutside.open(null, `eg${process.pid}`);
    // Berth lets only the default route's interface forward.
    writeFileSync(`/proc/sys/net/ipv4/conf/eg${process.pid}/forwarding`, '1');
    await servers.prepare();
    await servers.serve(opened.outside.path, environment);
    writeFileSync(join(folder, 'resolv.conf'), `nameserver ${NAME_SERVER}\n`);
    writeFileSync(join(folder, 'roots'), readFileSync(ROOTS, 'utf8') + readFileSync(servers.roots, 'utf8'));
    // A copy of another test's mount would keep its device busy.
    const alone = `awk '$2 ~ "^/tmp/" { print $2 }' /proc/mounts | sort -r | xargs -r umount -l`;
    const mounts = `mount --bind ${folder}/resolv.conf /etc/resolv.conf && mount --bind ${folder}/roots ${ROOTS}`;
    const shell = ['unshare', '--mount', 'sh', '-c', `${alone}; ${mounts} && exec "$@"`, 'sh'] as const;
    opened.berth = await Installation.start({ program: [...shell, process.execPath, MAIN, 'start'] });
    return { berth: opened.berth, servers, close };
  } catch (error) {
    await close();
    throw error;
  }
}
