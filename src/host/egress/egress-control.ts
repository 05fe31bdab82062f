/**
 * Enforces the egress policies and the secrets of this host's VMs: takes them from the assignments, gives them to the
 * egress proxy, and applies packet rules in the guests' network.
 *
 *   assignments ──► proxy (names, secrets) ──► packet rules (everything else) ──► "applied"
 *   addresses of allowed names, from the proxy ──► first packets that may pass
 *   refused look-ups and connections of the proxy, refused packets of the kernel's log ──► reports to the control plane
 *
 * - A VM with restricted egress or secrets starts only after they are applied.
 * - Private keys of certificate authorities stay in this process. Values of secrets are only in its memory and the
 *   proxy's.
 * - Until the first assignments come, the kernel keeps the rules of the last agent. While no proxy runs, these refuse
 *   every connection that only the name of its server could allow.
 */
import { createHash } from 'node:crypto';
import { BATCHES, BatchSender } from '../../protocol/batches.ts';
import type { ControlPlaneClient } from '../../protocol/client.ts';
import { Denials } from '../../protocol/denials.ts';
import type { CountedDenial, GuestPolicy } from '../../protocol/egress-proxy-messages.ts';
import type { DeniedDestination } from '../../protocol/host-types.ts';
import type { Assignment } from '../../protocol/types.ts';
import { assert } from '../../shared/assert.ts';
import { rfc3339 } from '../../shared/clock.ts';
import { Signal } from '../../shared/concurrency.ts';
import { messageOf } from '../../shared/errors.ts';
import type { InstanceId } from '../../shared/ids.ts';
import type { Log } from '../../shared/log.ts';
import { backoffMs, pause } from '../../shared/retry.ts';
import { DENIED_LOG_GROUP, guestAddress, PROXY_MARK } from '../network/addresses.ts';
import { type GuestNetwork, hostAddresses, hostResolvers, inNetwork } from '../network/guest-network.ts';
import { CertificateSource, fingerprintOfAuthority } from './certificate-source.ts';
import { EgressProxyChild } from './egress-proxy-child.ts';
import { runPacketLog } from './packet-log.ts';
import { PROXY_ROUTES, policyRules } from './policy-rules.ts';
import { ResolvedAddresses } from './resolved-addresses.ts';

/** In the guests' network, where nothing else listens. */
const RELAY_PORT = 7_443;
const NAMES_PORT = 7_053;
/** Debian's authorities, and those that its operator adds (update-ca-certificates). */
const ROOTS_FILE = '/etc/ssl/certs/ca-certificates.crt';
/** How long a change waits for the proxy. The rules are closed without it. */
const PROXY_MS = 1_500;
/** Denied destinations that wait for the control plane, and those of one instance once many wait. */
const WAITING_MAX = 10_000;
const WAITING_OF_ONE_MAX = 100;
const MANY_WAIT = 1_000;

type Policed = Pick<Assignment, 'instance_id' | 'egress' | 'secrets' | 'secrets_authority'> & {
  readonly spec: { readonly slot: number };
};

export interface EgressControlOptions {
  /** null: VMs have QEMU's user network, where no policy can be enforced. */
  readonly network: GuestNetwork | null;
  readonly client: Pick<ControlPlaneClient, 'reportDenied'>;
  readonly log: Log;
}

export class EgressControl {
  readonly #options: EgressControlOptions;
  readonly #proxy: EgressProxyChild | null;
  #resolved_addresses: ResolvedAddresses | null = null;
  readonly #denials: Denials;
  readonly #certificates = new CertificateSource();
  readonly #instances = new Map<string, InstanceId>();
  #waiting: DeniedDestination[] = [];
  readonly #waits = new Signal();
  readonly #sender: BatchSender<typeof BATCHES.denied.item>;
  /** Changes are applied one after the other. */
  #last: Promise<void> = Promise.resolve();
  #applied: ReadonlyMap<InstanceId, string> = new Map();
  /** null: the control plane has not answered yet. */
  #newest: readonly Policed[] | null = null;

  constructor(options: EgressControlOptions) {
    this.#options = options;
    this.#sender = new BatchSender(BATCHES.denied, options.log);
    const take = (denials: readonly CountedDenial[]) => this.#take(denials);
    this.#denials = new Denials(take);
    const { network } = options;
    if (network === null) {
      this.#proxy = null;
      return;
    }
    const resolved_addresses = new ResolvedAddresses((args, input) =>
      inNetwork(network, ['nft', ...args], input),
    );
    this.#resolved_addresses = resolved_addresses;
    this.#proxy = new EgressProxyChild({
      guest_namespace: network.path,
      own_namespace: `/proc/${process.pid}/ns/net`,
      relay_port: RELAY_PORT,
      names_port: NAMES_PORT,
      uid: network.egress_proxy_uid,
      roots_file: ROOTS_FILE,
      log: options.log,
      takeDenials: take,
      admit: async (guest, addresses) => {
        assert(this.#instances.has(guest), 'only a VM of this host looks up names');
        await resolved_addresses.admit(guest, addresses);
      },
      certify: (...asked) => this.#certificates.make(...asked),
      takeServerFailure: (guest, name, reason) =>
        options.log.warn(
          { instance_id: this.#instances.get(guest), name, reason },
          'a server got no request, because it could not be trusted or reached',
        ),
    });
  }

  async run(signal: AbortSignal): Promise<void> {
    const { network, log } = this.#options;
    if (!network || !this.#proxy) return;
    signal.addEventListener('abort', () => this.#proxy?.close(), { once: true });
    const takeDenial = (denial: Parameters<Denials['add']>[0]) => this.#denials.add(denial);
    await Promise.all([
      this.#proxy.run(),
      runPacketLog({ namespace: network.path, group: DENIED_LOG_GROUP, log, takeDenial }, signal),
      this.#reports(signal),
    ]);
  }

  /** Has the policies and secrets of all assignments enforced. @throws why the rules cannot be applied */
  apply(assignments: readonly Policed[], again = false): Promise<void> {
    this.#newest = assignments;
    const applying = this.#last.then(() => this.#apply(assignments, again));
    this.#last = applying.catch(() => undefined);
    return applying;
  }

  /** Called about once a minute: the host's resolvers and networks change, and others may remove rules. */
  async mend(): Promise<void> {
    if (this.#newest !== null) await this.apply(this.#newest, true);
  }

  /** @throws when the VM of an assignment must not run, because its policy or its secrets have no effect here */
  requireEnforced(policed: Policed): void {
    const { instance_id, egress, secrets = [] } = policed;
    if (this.#applied.get(instance_id) === digestOf(policed)) return;
    if (this.#options.network === null) {
      const why = "its VMs have QEMU's user network. Run Berth as root on a host with /dev/net/tun, or";
      if (egress.mode !== 'open')
        throw new Error(
          `this host cannot enforce the egress mode "${egress.mode}": ${why} set the mode to open`,
        );
      if (secrets.length > 0) throw new Error(`this host cannot use secrets: ${why} remove the secrets`);
      return;
    }
    if (egress.mode === 'open' && secrets.length === 0) return;
    throw new Error('the egress policy is not enforced yet; start the VM again');
  }

  async #apply(assignments: readonly Policed[], again: boolean): Promise<void> {
    const { network, log } = this.#options;
    if (!network || !this.#proxy) return;
    const guests: GuestPolicy[] = assignments.map(({ spec, egress, secrets = [], secrets_authority }) => ({
      address: guestAddress(spec.slot),
      policy: egress,
      secrets: secrets.map(({ placeholder, hosts, value }) => ({ placeholder, hosts, value })),
      authority: secrets_authority ? fingerprintOfAuthority(secrets_authority) : null,
    }));
    for (const { instance_id, spec } of assignments)
      this.#instances.set(guestAddress(spec.slot), instance_id);
    const wanted = new Map(assignments.map((each) => [each.instance_id, digestOf(each)]));
    if (!again && sameEntries(wanted, this.#applied)) return;
    this.#certificates.replace(
      assignments.map(({ secrets_authority, secrets = [] }) => ({ authority: secrets_authority, secrets })),
    );
    const state = { resolvers: hostResolvers(), host_networks: hostAddresses(), guests };
    const late = new AbortController();
    const is_late = pause(PROXY_MS, late.signal).then(() => true);
    if (await Promise.race([this.#proxy.apply(state).then(() => false), is_late])) this.#proxy.endStalled();
    late.abort();
    await inNetwork(network, ['sh', '-c', ROUTES_SCRIPT]);
    const ports = { relay_port: RELAY_PORT, names_port: NAMES_PORT };
    await inNetwork(network, ['nft', '-f', '-'], policyRules({ guests, interfaces: 'vm*', ...ports }));
    this.#resolved_addresses?.keepOnly(new Set(guests.map(({ address }) => address)));
    this.#applied = wanted;
    log.debug({ guests: guests.length }, 'egress policies are applied');
  }

  #take(denials: readonly CountedDenial[]): void {
    for (const { guest, name, address, port, count, at_ms } of denials) {
      const instance_id = this.#instances.get(guest);
      if (!instance_id || !this.#mayWait(instance_id)) continue;
      this.#waiting.push({
        instance_id,
        // Of the proxy, which a guest may have taken over.
        at: rfc3339(new Date(Math.max(0, Math.min(Number(at_ms) || 0, Date.now())))),
        name,
        address,
        port: port || null,
        count,
      });
    }
    this.#waits.notify();
  }

  #mayWait(instance_id: InstanceId): boolean {
    if (this.#waiting.length < MANY_WAIT) return true;
    const of_one = this.#waiting.filter((each) => each.instance_id === instance_id).length;
    return this.#waiting.length < WAITING_MAX && of_one < WAITING_OF_ONE_MAX;
  }

  async #reports(signal: AbortSignal): Promise<void> {
    for (let failures = 0; !signal.aborted; ) {
      const since = this.#waits.count;
      if (this.#waiting.length === 0) {
        await this.#waits.wait({ since, signal });
        continue;
      }
      try {
        await this.#sender.send(this.#waiting, {
          post: (denials) => this.#options.client.reportDenied({ denials }),
          settled: (denials) => {
            const sent = new Set(denials);
            this.#waiting = this.#waiting.filter((each) => !sent.has(each));
          },
        });
        failures = 0;
      } catch (error) {
        this.#options.log.debug({ reason: messageOf(error) }, 'denied attempts could not be reported');
        await pause(backoffMs(failures++, 200, 5_000), signal);
      }
    }
  }
}

/** Tells one state of a VM's policy and secrets from another. */
function digestOf({ egress, secrets = [], secrets_authority }: Policed): string {
  return createHash('sha256')
    .update(JSON.stringify([egress, secrets, secrets_authority?.certificate]))
    .digest('base64');
}

function sameEntries(a: ReadonlyMap<string, string>, b: ReadonlyMap<string, string>): boolean {
  return a.size === b.size && [...a].every(([key, value]) => b.get(key) === value);
}

/** Packets with the proxy's mark are delivered in the namespace, whatever their destination. */
const ROUTES_SCRIPT = [
  'set -e',
  `ip rule show fwmark ${PROXY_MARK} | grep -q . || ip rule add fwmark ${PROXY_MARK} lookup ${PROXY_ROUTES}`,
  `ip route replace local default dev lo table ${PROXY_ROUTES}`,
].join('\n');
