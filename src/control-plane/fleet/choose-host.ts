/**
 * Chooses the host of a new boot. Pure: the hosts' facts and the VM's need go in; a host, or the reason why there is
 * none, comes out. A host qualifies if it passes every rule of {@link RULES}. Among those, the first of these
 * preferences in which two hosts differ decides, and else their order in the list:
 *
 * 1. the host that ran the instance last, if it may have the only copy of some writes
 * 2. a host that is not cordoned
 * 3. a host that can resume the VM's saved memory
 * 4. a host that has not just failed to resume this memory
 * 5. the host that ran the instance last, because its overlay may be warm
 * 6. the host with the fewest VMs of the organisation
 * 7. the host with the most free memory
 */
import type { EgressMode } from '../../shared/egress-policy.ts';
import type { HostId } from '../../shared/ids.ts';

/** What VMs may use of a host. */
export interface Capacity {
  /** The most that one VM may have; null: unlimited, as on this machine. */
  readonly cpus: number | null;
  readonly memory_mib: number;
}

export interface Candidate {
  readonly id: HostId;
  /** Gets no new VM. */
  readonly cordoned: boolean;
  /** Null: the operator has not set it yet. */
  readonly capacity: Capacity | null;
  readonly used_memory_mib: number;
  /** It has the image that is needed, or none is. */
  readonly has_image: boolean;
  readonly enforces_egress: boolean;
  /** Why it cannot use the object store; null: it can. */
  readonly store_problem: string | null;
  readonly labels: Readonly<Record<string, string>>;
  readonly taints: readonly string[];
  /** What two hosts share if one can resume memory of the other; null: it does not say. */
  readonly machine: string | null;
  /** VMs there of the instance's organisation. */
  readonly org_vms: number;
}

export interface Need {
  /** Set when the image is not in the object store, so that the host must have it. */
  readonly image: string | null;
  readonly cpus: number;
  readonly memory_mib: number;
  readonly egress_mode: EgressMode;
  /** The host has all of these. */
  readonly host_labels: Readonly<Record<string, string>>;
  /** Taints that the host may have. */
  readonly tolerations: readonly string[];
  /** There is saved memory to resume. */
  readonly resumes: boolean;
  /** Of the host that saved the VM's memory; null: there is none to resume. */
  readonly machine: string | null;
  /** Ran the instance last; null: none did. */
  readonly last: HostId | null;
  /** Could not resume the memory; null: none has tried. */
  readonly avoided: HostId | null;
  /** The last host may have the only copy of some writes. */
  readonly unsaved: boolean;
  /** Where no other host qualifies, the last one does although it is cordoned. */
  readonly may_stay: boolean;
}

interface Rule {
  readonly admits: (host: Candidate, need: Need) => boolean;
  /** Why no host is left, and what to do. */
  readonly reason: (need: Need) => string;
  /** It may pass without that: other VMs stop. */
  readonly passes?: boolean;
}

const RULES: readonly Rule[] = [
  {
    admits: ({ cordoned, id }, need) => !cordoned || (id === need.last && (need.unsaved || need.may_stay)),
    reason: () => 'Every connected host is cordoned or being drained.',
  },
  {
    admits: ({ capacity }) => capacity !== null,
    reason: () => 'No connected host has a capacity yet. An operator must set it.',
  },
  {
    admits: ({ has_image }, { image }) => image === null || has_image,
    reason: ({ image }) => `No connected host has the image "${image}".`,
  },
  {
    admits: ({ enforces_egress }, { egress_mode }) => egress_mode === 'open' || enforces_egress,
    reason: ({ egress_mode }) =>
      `No connected host can enforce the egress mode "${egress_mode}". It takes a host where Berth runs as root with /dev/net/tun. Otherwise set the mode to open.`,
  },
  {
    admits: ({ store_problem }, { resumes }) => !resumes || store_problem === null,
    reason: () =>
      'No connected host can read the saved memory: their object store cannot be used now. The memory is kept; try again.',
  },
  {
    admits: ({ labels }, { host_labels }) =>
      Object.entries(host_labels).every(
        ([key, value]) => Object.hasOwn(labels, key) && labels[key] === value,
      ),
    reason: ({ host_labels }) =>
      `No connected host has the labels ${labelsText(host_labels)}. Change host_labels, or have an operator label a host.`,
  },
  {
    admits: ({ taints }, { tolerations }) => taints.every((taint) => tolerations.includes(taint)),
    reason: () => 'Every such host has a taint that the instance does not tolerate.',
  },
  {
    admits: hasCapacity,
    passes: true,
    reason: ({ cpus, memory_mib }) =>
      `No connected host has ${cpus} cpus and ${memory_mib} MiB of memory left. Stop another VM, or make this one smaller.`,
  },
];

/** Whether its capacity suffices. */
export function hasCapacity(
  { capacity, used_memory_mib }: Pick<Candidate, 'capacity' | 'used_memory_mib'>,
  { cpus, memory_mib }: Pick<Need, 'cpus' | 'memory_mib'>,
): boolean {
  if (capacity === null || (capacity.cpus !== null && capacity.cpus < cpus)) return false;
  return capacity.memory_mib - used_memory_mib >= memory_mib;
}

export interface Refused {
  readonly reason: string;
  /** It may pass by itself. */
  readonly passes: boolean;
}

/** Of connected hosts. */
export function choose<Host extends Candidate>(
  hosts: readonly Host[],
  need: Need,
): { readonly host: Host } | Refused {
  let left = hosts;
  if (left.length === 0) return { reason: 'No host is connected.', passes: true };
  for (const { admits, reason, passes = false } of RULES) {
    left = left.filter((host) => admits(host, need));
    if (left.length === 0) return { reason: reason(need), passes };
  }
  return { host: left.reduce((best, host) => (compare(host, best, need) < 0 ? host : best)) };
}

/** Negative: `a` is better. */
function compare(a: Candidate, b: Candidate, need: Need): number {
  return (
    Number(need.unsaved && b.id === need.last) - Number(need.unsaved && a.id === need.last) ||
    Number(a.cordoned) - Number(b.cordoned) ||
    Number(canResume(b, need)) - Number(canResume(a, need)) ||
    Number(a.id === need.avoided) - Number(b.id === need.avoided) ||
    Number(b.id === need.last) - Number(a.id === need.last) ||
    a.org_vms - b.org_vms ||
    freeMib(b) - freeMib(a)
  );
}

export function canResume({ machine }: Pick<Candidate, 'machine'>, need: Pick<Need, 'machine'>): boolean {
  return need.machine !== null && machine === need.machine;
}

function freeMib({ capacity, used_memory_mib }: Candidate): number {
  return (capacity?.memory_mib ?? 0) - used_memory_mib;
}

function labelsText(labels: Readonly<Record<string, string>>): string {
  return Object.entries(labels)
    .map(([key, value]) => `${key}=${value}`)
    .join(', ');
}
