/**
 * Applies and removes the guests' egress rules.
 * Invariant: when the rules cannot be applied, the reason is returned. The caller must then not start guests, or must report
 * that guests can reach this host's loopback.
 */
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { networkInterfaces } from 'node:os';
import { egressRules, egressTable, parseResolvers } from './egress-rules.ts';

const NFT_TIMEOUT_MS = 10_000;

export type EgressResult =
  | { readonly closed: true }
  | {
      readonly closed: false;
      /** For people. */
      readonly reason: string;
    };

/**
 * Applies the rules, replacing the table. Never throws. It reads the host's present resolvers and networks; call it again
 * when they change.
 */
export async function applyEgressRules(options: {
  readonly data_folder_id: string;
  readonly nft_binary?: string;
  /** First and last user of the VMs; by default the range of uid.ts. */
  readonly first_uid?: number;
  readonly last_uid?: number;
  readonly gate_uid?: number;
  /** More chains of the table. */
  readonly chains?: readonly string[];
}): Promise<EgressResult> {
  let resolvers: string[] = [];
  try {
    resolvers = parseResolvers(readFileSync('/etc/resolv.conf', 'utf8'));
  } catch {
    // Without it no resolver is opened, so guests have no DNS.
  }
  const text = egressRules({ ...options, resolvers, host_networks: hostNetworks() });
  const trouble = await nft(options.nft_binary ?? 'nft', text);
  return trouble === null
    ? { closed: true }
    : { closed: false, reason: `the guests' network cannot be closed off: ${trouble}` };
}

/** Removes the table. Returns the reason when it fails. Call it only while none of this installation's guests run. */
export async function removeEgressRules(data_folder_id: string): Promise<string | null> {
  const table = egressTable(data_folder_id);
  return nft('nft', `table inet ${table} {}\ndelete table inet ${table}\n`);
}

/** The networks of the host's interfaces, except single addresses (/32, /128). */
function hostNetworks(): string[] {
  return Object.values(networkInterfaces())
    .flatMap((addresses) => addresses ?? [])
    .map((address) => address.cidr)
    .filter((cidr) => cidr !== null && !/\/(32|128)$/.test(cidr)) as string[];
}

/** Applies `rules`. Null on success, else the error. */
function nft(binary: string, rules: string): Promise<string | null> {
  const { promise, resolve } = Promise.withResolvers<string | null>();
  const child = spawn(binary, ['-f', '-'], {
    stdio: ['pipe', 'ignore', 'pipe'],
    env: { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', LANG: 'C.UTF-8' },
    timeout: NFT_TIMEOUT_MS,
    killSignal: 'SIGKILL',
  });
  let errors = '';
  child.stderr.on('data', (chunk: Buffer) => {
    errors = (errors + chunk.toString('utf8')).slice(0, 2_000);
  });
  child.once('error', (error: NodeJS.ErrnoException) => {
    resolve(error.code === 'ENOENT' ? `${binary} is not installed (Debian: nftables)` : error.message);
  });
  child.once('close', (status, signal) => {
    const said = errors.trim().split('\n')[0];
    resolve(
      status === 0 ? null : `${binary} ended with ${signal ?? `status ${status}`}${said ? `: ${said}` : ''}`,
    );
  });
  child.stdin.on('error', () => {});
  child.stdin.end(rules);
  return promise;
}
