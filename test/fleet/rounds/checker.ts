/**
 * Checks a history against Berth's promises. It knows nothing of the program: only what guests said, what callers were told, which
 * processes ran, and what the database and the disks hold in the end.
 *
 * Records are numbered along a disk. A guest continues after the newest record that its disk holds, so the numbers of lost
 * records are used again, and what a receipt covers is the highest number that must not be missing in any later boot.
 *
 * Where the database is restored, the history is cut: what was covered before the copy still is, later receipts are not, and
 * epochs and generations count anew from those of the copy.
 */
import type { Boot, Call, Event, GenerationRow, Head, NewDisk, VmRow, Written } from './history.ts';

/** An instance of a lost host runs elsewhere within this time. */
export const ELSEWHERE_MS = 60_000;

/** A record is read so much later, at most, than its guest wrote it. */
const RECORD_LATE_MS = 2_000;

/** What an instance may not lose from then on. */
interface Cover {
  readonly instance: string;
  readonly from_ms: number;
  readonly number: number;
  readonly why: string;
  /** Only the boot with this epoch may not lose it. */
  readonly at_epoch?: number;
}

/** A part of the history with one database. */
interface Part {
  readonly events: readonly Event[];
  /** What the parts before have covered. */
  readonly covers: readonly Cover[];
  readonly is_restored: boolean;
}

type Of<K extends Event['kind']> = Extract<Event, { readonly kind: K }>;

function all<K extends Event['kind']>(events: readonly Event[], kind: K): Of<K>[] {
  return events.filter((event): event is Of<K> => event.kind === kind);
}

/** Each violation as a sentence; none: every promise was kept. */
export function check(events: readonly Event[]): string[] {
  return [
    ...neverTwice(events),
    ...partsOf(events).flatMap((part) => [...epochsGrow(part), ...receiptsStay(part.events)]),
    ...nothingCoveredIsMissing(events),
    ...olderDisksAreReported(events),
    ...memoryRunsOnce(events),
    ...lostMemoryIsReported(events),
    ...lostHostsAreReplaced(events),
    ...guestsSeeNoErrors(events),
    ...callersAreToldWell(events),
    ...all(events, 'stuck').map(({ what }) => `not back in time: ${what}`),
  ];
}

function partsOf(events: readonly Event[]): Part[] {
  const parts: Part[] = [];
  let part: Part = { events, covers: [], is_restored: false };
  for (;;) {
    const cut = part.events.findIndex(({ kind }) => kind === 'restored');
    const restored = part.events[cut];
    if (restored?.kind !== 'restored') return [...parts, part];
    const before = { ...part, events: part.events.slice(0, cut) };
    parts.push(before);
    // What was answered by the database before is not known to this one.
    const is_earlier = (event: Event) => event.kind === 'call' && event.began_ms < restored.at_ms;
    part = {
      events: part.events.slice(cut + 1).filter((event) => !is_earlier(event)),
      covers: coversOf(before).filter(({ from_ms }) => from_ms < restored.copied_ms),
      is_restored: true,
    };
  }
}

function neverTwice(events: readonly Event[]): string[] {
  return all(events, 'processes')
    .filter(({ running }) => running.length > 1)
    .map(({ instance, running, at_ms }) => `${instance} runs twice at ${at_ms}: ${running.join(' and ')}`);
}

/** Of the VMs' rows, and of what guests said in turn. */
function epochsGrow({ events, is_restored }: Part): string[] {
  const wrong: string[] = [];
  for (const [instance, rows] of byInstance(all(events, 'vm'))) {
    const ordered = rows.toSorted((a, b) => a.boot - b.boot);
    ordered.forEach((row, at) => {
      const before = ordered[at - 1];
      if (before && (row.boot === before.boot || row.epoch <= before.epoch))
        wrong.push(
          `${instance}: boot ${row.boot} has epoch ${row.epoch} after boot ${before.boot} with ${before.epoch}`,
        );
    });
  }
  for (const [instance, boots] of byInstance(all(events, 'boot'))) {
    const known = new Set(
      all(events, 'vm')
        .filter((row) => row.instance === instance)
        .map(({ epoch }) => epoch),
    );
    for (const { boot_id, epoch } of boots)
      if (known.size > 0 && !known.has(epoch) && !is_restored)
        wrong.push(`${instance}: boot ${boot_id} has epoch ${epoch}, which no VM has`);
  }
  return wrong;
}

function nothingCoveredIsMissing(events: readonly Event[]): string[] {
  return comparisons(events)
    .filter(({ found, most }) => found.newest < most.number)
    .map(
      ({ found, most }) =>
        `${found.instance}: ${nameOf(found)} has record ${found.newest}, but ${most.why} covers ${most.number}`,
    );
}

/** Each boot and head of which something is covered, and the most that is. */
export function comparisons(
  events: readonly Event[],
): { readonly found: Boot | Head; readonly most: Cover }[] {
  return partsOf(events).flatMap(comparisonsIn);
}

function comparisonsIn(part: Part): { readonly found: Boot | Head; readonly most: Cover }[] {
  const { events } = part;
  const covers = byInstance([...coversOf(part), ...fsyncedOnHosts(part)].filter(({ number }) => number > 0));
  return [...all(events, 'boot'), ...all(events, 'head')].flatMap((found) => {
    const [most] = (covers.get(found.instance) ?? [])
      .filter(({ from_ms }) => from_ms < found.at_ms)
      .filter(({ at_epoch }) => at_epoch === undefined || (found.kind === 'boot' && found.epoch === at_epoch))
      .toSorted((a, b) => b.number - a.number);
    return most ? [{ found, most }] : [];
  });
}

function nameOf(found: Boot | Head): string {
  return found.kind === 'boot'
    ? `boot ${found.boot_id} at ${found.at_ms}`
    : `the head, generation ${found.generation},`;
}

/** What flushes and stops cover, and what forks have of it. */
function coversOf({ events, covers: earlier, is_restored }: Part): Cover[] {
  const calls = all(events, 'call').filter(({ outcome }) => outcome === 'ok');
  const epochs = new EpochsOf(events);
  const written = byInstance(all(events, 'record'));
  const covers: Cover[] = [...earlier];
  for (const call of calls.toSorted((a, b) => a.at_ms - b.at_ms)) {
    const { instance, at_ms, began_ms } = call;
    if (call.made !== undefined) {
      const its = covers.filter((cover) => cover.instance === instance && cover.from_ms < began_ms);
      for (const { number, why } of its)
        covers.push({
          instance: call.made,
          from_ms: at_ms,
          number,
          why: `${why} of ${instance}, whose fork it is,`,
        });
    }
    const epoch = epochs.of(call);
    if (epoch === undefined) continue;
    // A stop covers all that was acknowledged; a flush, what was acknowledged before it began.
    const until_ms = call.verb === 'stop' ? at_ms : began_ms;
    // Epochs count anew after a restore: a guest whose process had ended is of another VM than the one that is flushed.
    const since_ms = is_restored && call.verb === 'flush' ? endOfProcesses(events, instance, began_ms) : 0;
    const its = (written.get(instance) ?? []).filter((record) => record.at_ms > since_ms);
    const number = newestOf(its, epoch, until_ms);
    const why =
      call.verb === 'stop' ? `the stop at ${at_ms}` : `the receipt of generation ${call.generation}`;
    covers.push({ instance, from_ms: at_ms, number, why });
  }
  return covers;
}

/**
 * Where a VM follows another on the same host, it has all that the other's guest fsynced, flushed or not, unless the host has got an
 * empty disk. A restored database may not know of the VM between them.
 */
function fsyncedOnHosts({ events, is_restored }: Part): Cover[] {
  if (is_restored) return [];
  const written = byInstance(all(events, 'record'));
  return [...byInstance(all(events, 'vm'))].flatMap(([instance, rows]) =>
    rows
      .toSorted((a, b) => a.boot - b.boot)
      .flatMap(({ epoch, host }, at, ordered) => {
        const before = ordered[at - 1];
        if (before?.host !== host) return [];
        const first = (written.get(instance) ?? []).find((record) => record.epoch === before.epoch);
        const is_new = (disk: NewDisk) => disk.host === host && disk.at_ms >= (first?.at_ms ?? 0);
        if (all(events, 'new disk').some(is_new)) return [];
        const number = newestOf(written.get(instance) ?? [], before.epoch, Number.POSITIVE_INFINITY);
        return [
          {
            instance,
            from_ms: 0,
            number,
            why: `an fsync at epoch ${before.epoch} on ${host}`,
            at_epoch: epoch,
          },
        ];
      }),
  );
}

/** The epoch of the VM that a call flushed or stopped. */
class EpochsOf {
  readonly #generations: readonly GenerationRow[];
  readonly #vms: readonly VmRow[];

  constructor(events: readonly Event[]) {
    this.#generations = all(events, 'generation');
    this.#vms = all(events, 'vm');
  }

  of({ verb, instance, generation, boot }: Call): number | undefined {
    if (verb === 'flush')
      return this.#generations.find((row) => row.instance === instance && row.generation === generation)
        ?.epoch;
    if (verb === 'stop')
      return this.#vms.find((row) => row.instance === instance && row.boot === boot)?.epoch;
    return undefined;
  }
}

/** When an instance was last seen without a process, before that time; 0: never. */
function endOfProcesses(events: readonly Event[], instance: string, before_ms: number): number {
  return all(events, 'processes')
    .filter((seen) => seen.instance === instance && seen.running.length + seen.paused.length === 0)
    .reduce((last, { at_ms }) => (at_ms < before_ms ? Math.max(last, at_ms) : last), 0);
}

/** The newest record that the VM's last guest had reported by then. */
function newestOf(records: readonly Written[], epoch: number, until_ms: number): number {
  const its = records.filter((record) => record.epoch === epoch && record.at_ms <= until_ms);
  const boot_id = its.at(-1)?.boot_id;
  return its
    .filter((record) => record.boot_id === boot_id)
    .reduce((most, { number }) => Math.max(most, number), 0);
}

/** A guest that finds less than the guest before has fsynced: an event of its own says so. */
function olderDisksAreReported(events: readonly Event[]): string[] {
  const records = byInstance(all(events, 'record'));
  const losses = byInstance(all(events, 'loss'));
  return [...byInstance(all(events, 'boot'))].flatMap(([instance, boots]) => {
    let reported = losses.get(instance) ?? [];
    return boots.flatMap((found, at) => {
      const before = boots[at - 1];
      if (!before) return [];
      const its = (records.get(instance) ?? []).filter(
        ({ boot_id, at_ms }) => boot_id === before.boot_id && at_ms < found.at_ms,
      );
      const number = Math.max(before.newest, ...its.map((record) => record.number));
      if (found.newest >= number) return [];
      const from_ms = (its.at(-1)?.at_ms ?? before.at_ms) - RECORD_LATE_MS;
      const until_ms = boots[at + 1]?.at_ms ?? Number.POSITIVE_INFINITY;
      const loss = reported.find(({ at_ms }) => at_ms > from_ms && at_ms < until_ms);
      reported = reported.filter((each) => each !== loss);
      if (loss) return [];
      return [
        `${instance}: ${nameOf(found)} has record ${found.newest} after the fsync of ${number}, and no event says recovered`,
      ];
    });
  });
}

/** Guests count in memory: one that repeats a number runs from memory that has run before. */
function memoryRunsOnce(events: readonly Event[]): string[] {
  const newest = new Map<string, number>();
  const wrong = new Map<string, string>();
  for (const { instance, boot_id, number, at_ms } of all(events, 'record')) {
    const before = newest.get(boot_id) ?? 0;
    if (number <= before && !wrong.has(boot_id))
      wrong.set(
        boot_id,
        `${instance}: memory of boot ${boot_id} runs a second time: record ${number} at ${at_ms} after ${before}`,
      );
    newest.set(boot_id, Math.max(before, number));
  }
  return [...wrong.values()];
}

/** These may end a guest that has just resumed, and has not said anything yet. */
const ENDS_GUESTS = /^rack-[0-9] (power|cut|pause|mute|deaf|kill VM|new disk|clock)/;

/** Where a guest boots although memory was saved, and did not run since, an event says so. */
function lostMemoryIsReported(events: readonly Event[]): string[] {
  const saved = all(events, 'call').filter(({ verb, what }) => verb === 'suspend' && what === 'suspended');
  return saved.flatMap(({ instance, at_ms: saved_ms }) => {
    const boots = all(events, 'boot').filter((each) => each.instance === instance);
    const at = boots.findIndex(({ at_ms }) => at_ms > saved_ms);
    const [before, found, next] = [boots[at - 1], boots[at], boots[at + 1]];
    if (!before || !found) return [];
    const during = (until_ms: number) => (event: { readonly at_ms: number }) =>
      event.at_ms > saved_ms && event.at_ms < until_ms;
    const ran = all(events, 'record')
      .filter(during(found.at_ms))
      .some(({ boot_id }) => boot_id === before.boot_id);
    const may_have_run = all(events, 'fault')
      .filter(during(found.at_ms))
      .some(({ what }) => ENDS_GUESTS.test(what));
    const is_reported = all(events, 'loss')
      .filter(during(next?.at_ms ?? Number.POSITIVE_INFINITY))
      .some((loss) => loss.instance === instance);
    if (ran || may_have_run || is_reported) return [];
    return [
      `${instance}: ${nameOf(found)} lacks the memory that was saved at ${saved_ms}, and no event says so`,
    ];
  });
}

/** Each receipt's generation is the head or one of its ancestors. Old generations may have been removed. */
function receiptsStay(events: readonly Event[]): string[] {
  const generations = byInstance(all(events, 'generation'));
  const receipts = all(events, 'call').filter(({ verb, outcome }) => verb === 'flush' && outcome === 'ok');
  return all(events, 'head').flatMap(({ instance, generation }) => {
    const rows = new Map((generations.get(instance) ?? []).map((row) => [row.generation, row]));
    const chain = new Set<number>();
    for (let at: number | null = generation; at !== null && !chain.has(at); at = rows.get(at)?.parent ?? null)
      chain.add(at);
    const oldest = Math.min(...chain);
    const wrong = receipts.filter(
      (receipt) =>
        receipt.instance === instance &&
        (receipt.generation ?? 0) >= oldest &&
        !chain.has(receipt.generation ?? 0),
    );
    return wrong.map(
      (receipt) =>
        `${instance}: the receipt of generation ${receipt.generation} was taken back; the head is ${generation}`,
    );
  });
}

function lostHostsAreReplaced(events: readonly Event[]): string[] {
  return replacements(events)
    .filter(({ after_ms }) => after_ms === null || after_ms > ELSEWHERE_MS)
    .map(({ instance, host, after_ms }) =>
      after_ms === null
        ? `${instance} of the lost ${host} never ran elsewhere`
        : `${instance} of the lost ${host} ran elsewhere only after ${after_ms} ms`,
    );
}

export interface Replacement {
  readonly instance: string;
  readonly host: string;
  /** Null: never. */
  readonly after_ms: number | null;
}

/** When the instances of lost hosts ran elsewhere. */
export function replacements(events: readonly Event[]): Replacement[] {
  const processes = byInstance(all(events, 'processes'));
  return all(events, 'lost').flatMap(({ at_ms, host, instances }) =>
    instances.map((instance) => {
      const found = (processes.get(instance) ?? []).find(
        (each) => each.at_ms > at_ms && each.running.some((place) => !place.startsWith(`${host}:`)),
      );
      return { instance, host, after_ms: found ? found.at_ms - at_ms : null };
    }),
  );
}

function guestsSeeNoErrors(events: readonly Event[]): string[] {
  return [
    ...all(events, 'guest error').map(({ instance, what }) => `the guest of ${instance} has seen: ${what}`),
    ...all(events, 'boot')
      .filter(({ state }) => state !== 'ok')
      .map(({ instance, boot_id, state }) => `the disk of ${instance} at boot ${boot_id}: ${state}`),
  ];
}

function callersAreToldWell(events: readonly Event[]): string[] {
  return all(events, 'call')
    .filter(({ outcome }) => outcome === 'wrong')
    .map(({ verb, instance, at, what }) => `${verb} of ${instance} at ${at} was answered: ${what}`);
}

function byInstance<T extends { readonly instance: string }>(events: readonly T[]): Map<string, T[]> {
  return Map.groupBy(events, ({ instance }) => instance);
}
