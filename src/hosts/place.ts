import type { Tx } from '../db/pool.ts';
import { AppError } from '../lib/errors.ts';
import type { HostId } from '../lib/ids.ts';
import { isAway, type LiveHost, listLiveHosts, lockPlacement } from './store.ts';

/**
 * The host for a new boot: heard of lately, has the image and the memory; the one that ran the instance last
 * goes first, because its overlay may still be warm. Placements come one after the other until the transaction's end,
 * so that any number at once do not overcommit a host together. @throws AppError UNAVAILABLE saying what is missing
 */
export async function placeVm(
  tx: Tx,
  /** `image`: one that is in no object store, so that only hosts which have it will do. */
  need: { image: string | null; cpus: number; memory_mib: number },
  /** `unsaved`: it may hold what the disk has nowhere else. While it is away the boot waits: it comes back, or is given up. */
  last: { id: HostId | null; unsaved: boolean },
): Promise<LiveHost> {
  await lockPlacement(tx);
  const live = await listLiveHosts(tx);
  if (last.id !== null && last.unsaved && (await isAway(tx, last.id)))
    throw unavailable(
      'The host that ran it last is not heard of just now, and may hold writes that are saved nowhere else. Try again when it is back; once it is given up for lost, the VM starts on another.',
    );
  if (live.length === 0) throw unavailable('No host is connected.');
  const wanted = live.filter((host) => !host.draining);
  if (wanted.length === 0) throw unavailable('Every connected host is being drained.');
  const hosts = wanted.filter((host) => host.capacity !== null);
  if (hosts.length === 0) throw unavailable('No connected host has a capacity yet: its operator sets it.');
  const withImage = hosts.filter(
    (host) => need.image === null || host.facts.images.some((image) => image.id === need.image),
  );
  if (withImage.length === 0) throw unavailable(`No connected host has the image "${need.image}".`);
  const fitting = withImage.filter(({ capacity, used_memory_mib }) => {
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
