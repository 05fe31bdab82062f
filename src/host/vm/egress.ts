/**
 * Puts the guests' egress rules into the kernel, and takes them out.
 * Invariant: when the rules cannot be applied the reason is returned, and the caller must not start guests as if
 * they were (or must say plainly that guests reach this host's loopback).
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
      /** For a person. */
      readonly reason: string;
    };

/**
 * Applies the rules, again and again if called so: the table is replaced whole. Never throws.
 * Resolvers and networks are the host's at this moment; call it again when they change.
 */
export async function applyEgressRules(options: {
  readonly data_folder_id: string;
  readonly nft_binary?: string;
  readonly resolv_conf_path?: string;
  /** First and last user of the VMs; all of uid.ts's range by default. */
  readonly first_uid?: number;
  readonly last_uid?: number;
}): Promise<EgressResult> {
  let resolvers: string[] = [];
  try {
    resolvers = parseResolvers(readFileSync(options.resolv_conf_path ?? '/etc/resolv.conf', 'utf8'));
  } catch {
    // Without it there are no resolvers to open: guests get no DNS, and nothing else changes.
  }
  const text = egressRules({ ...options, resolvers, host_networks: hostNetworks() });
  const trouble = await nft(options.nft_binary ?? 'nft', ['-f', '-'], text);
  return trouble === null
    ? { closed: true }
    : { closed: false, reason: `the guests' network cannot be closed off: ${trouble}` };
}

/** Whether this installation's table is there: another program's `nft flush ruleset` takes it away. */
export async function egressRulesPresent(data_folder_id: string, nft_binary = 'nft'): Promise<boolean> {
  return (await nft(nft_binary, ['list', 'table', 'inet', egressTable(data_folder_id)], '')) === null;
}

/** Removes the table; answers a reason when it could not. None of this installation's guests may run then. */
export async function removeEgressRules(data_folder_id: string, nft_binary = 'nft'): Promise<string | null> {
  const table = egressTable(data_folder_id);
  return nft(nft_binary, ['-f', '-'], `table inet ${table} {}\ndelete table inet ${table}\n`);
}

/** Every network of the host's interfaces; a single address (/32, /128) is nobody's neighbour. */
function hostNetworks(): string[] {
  return Object.values(networkInterfaces())
    .flatMap((addresses) => addresses ?? [])
    .map((address) => address.cidr)
    .filter((cidr) => cidr !== null && !/\/(32|128)$/.test(cidr)) as string[];
}

/** Null on success, else what went wrong. */
function nft(binary: string, args: readonly string[], input: string): Promise<string | null> {
  const { promise, resolve } = Promise.withResolvers<string | null>();
  const child = spawn(binary, args, {
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
  child.stdin.end(input);
  return promise;
}
