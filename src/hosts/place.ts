import type { Tx } from '../db/pool.ts';
import type { EgressMode } from '../lib/egress-policy.ts';
import { AppError } from '../lib/errors.ts';
import type { HostId } from '../lib/ids.ts';
import { isDisconnected, type LiveHost, listLiveHosts, lockPlacement } from './store.ts';

/**
 * Chooses the host for a new boot: one that is connected and has the image and the memory, preferably the one that ran the
 * instance last, whose overlay may still be warm. Placements are serialised until the transaction's end, so that
 * concurrent ones cannot overcommit a host. @throws AppError UNAVAILABLE naming the missing resource
 */
export async function placeVm(
  tx: Tx,
  /** `image`: set when it is not in the object store, so that the host must have it. */
  need: { image: string | null; cpus: number; memory_mib: number; egress_mode: EgressMode },
  /** `unsaved`: it may have the only copy of some writes. No other host is chosen until it is back or lost. */
  last: { id: HostId | null; unsaved: boolean },
): Promise<LiveHost> {
  await lockPlacement(tx);
  const live = await listLiveHosts(tx);
  if (last.id !== null && last.unsaved && (await isDisconnected(tx, last.id)))
    throw unavailable(
      'The host that ran it last is not connected, and may have the only copy of its last writes. Try again when it is back. If it is declared lost, the VM can start on another host.',
    );
  if (live.length === 0) throw unavailable('No host is connected.');
  const wanted = live.filter((host) => !host.draining);
  if (wanted.length === 0) throw unavailable('Every connected host is being drained.');
  const hosts = wanted.filter((host) => host.capacity !== null);
  if (hosts.length === 0) throw unavailable('No connected host has a capacity yet. An operator must set it.');
  const with_image = hosts.filter(
    (host) => need.image === null || host.facts.images.some((image) => image.id === need.image),
  );
  if (with_image.length === 0) throw unavailable(`No connected host has the image "${need.image}".`);
  const enforcing = with_image.filter(
    // An agent that knows no policies does not say that it enforces them.
    ({ facts }) => need.egress_mode === 'open' || facts.enforces_egress === true,
  );
  if (enforcing.length === 0)
    throw unavailable(
      `No connected host can enforce the egress mode "${need.egress_mode}". It takes a host where Berth runs as root with /dev/net/tun. Otherwise set the mode to open.`,
    );
  const fitting = enforcing.filter(({ capacity, used_memory_mib }) => {
    if (capacity === null || (capacity.cpus !== null && capacity.cpus < need.cpus)) return false;
    return capacity.memory_mib - used_memory_mib >= need.memory_mib;
  });
  const chosen = fitting.find((host) => host.id === last.id) ?? fitting[0];
  if (!chosen)
    throw unavailable(
      `No connected host has ${need.cpus} cpus and ${need.memory_mib} MiB of memory left. Stop another VM, or make this one smaller.`,
    );
  return chosen;
}

function unavailable(message: string): AppError {
  return new AppError('UNAVAILABLE', { message, retry_after_seconds: 5 });
}
