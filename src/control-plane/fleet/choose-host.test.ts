import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import type { HostId } from '../../shared/ids.ts';
import { type Candidate, canResume, choose, hasCapacity, type Need } from './choose-host.ts';

const ZONES = ['a', 'b'];
const TAINTS = ['gpu', 'batch'];
const MACHINES = ['m1', 'm2'];

const host = fc.record({
  cordoned: fc.boolean(),
  capacity: fc.option(
    fc.record({
      cpus: fc.option(fc.integer({ min: 1, max: 8 })),
      memory_mib: fc.integer({ min: 1, max: 8_192 }),
    }),
  ),
  used_memory_mib: fc.integer({ min: 0, max: 8_192 }),
  has_image: fc.boolean(),
  enforces_egress: fc.boolean(),
  store_problem: fc.option(fc.constant('it cannot be reached')),
  labels: fc.constantFrom<Record<string, string>>({}, ...ZONES.map((zone) => ({ zone }))),
  taints: fc.subarray(TAINTS),
  machine: fc.option(fc.constantFrom(...MACHINES)),
  org_vms: fc.integer({ min: 0, max: 3 }),
});
const hosts = fc
  .array(host, { maxLength: 8 })
  .map((each) => each.map((facts, at): Candidate => ({ ...facts, id: `host_${at}` as HostId })));
const need: fc.Arbitrary<Need> = fc.record({
  image: fc.option(fc.constantFrom('debian-12', 'tools')),
  cpus: fc.integer({ min: 1, max: 8 }),
  memory_mib: fc.integer({ min: 128, max: 4_096 }),
  egress_mode: fc.constantFrom('open' as const, 'deny' as const),
  host_labels: fc.constantFrom<Record<string, string>>({}, { zone: 'a' }, { zone: 'b' }),
  tolerations: fc.subarray(TAINTS),
  resumes: fc.boolean(),
  machine: fc.option(fc.constantFrom(...MACHINES)),
  avoided: fc.option(fc.integer({ min: 0, max: 7 }).map((at) => `host_${at}` as HostId)),
  last: fc.option(fc.integer({ min: 0, max: 7 }).map((at) => `host_${at}` as HostId)),
  unsaved: fc.boolean(),
  may_stay: fc.boolean(),
});

const chosen = (all: readonly Candidate[], wanted: Need) => {
  const found = choose(all, wanted);
  return 'host' in found ? found.host : null;
};
/** That which no preference changes. */
const qualifies = (each: Candidate, wanted: Need) => chosen([each], wanted) !== null;
const holds = (check: (all: readonly Candidate[], wanted: Need) => void) =>
  fc.assert(fc.property(hosts, need, check), { numRuns: 2_000 });

test('a host never gets more memory or a larger VM than its capacity', () => {
  holds((all, wanted) => {
    const found = chosen(all, wanted);
    if (!found) return;
    assert.ok(found.capacity !== null && hasCapacity(found, wanted));
    assert.ok(found.used_memory_mib + wanted.memory_mib <= found.capacity.memory_mib);
    assert.ok(found.capacity.cpus === null || wanted.cpus <= found.capacity.cpus);
  });
});

test('labels, taints, image, egress and cordon are respected', () => {
  holds((all, wanted) => {
    const found = chosen(all, wanted);
    if (!found) return;
    for (const [key, value] of Object.entries(wanted.host_labels)) assert.equal(found.labels[key], value);
    for (const taint of found.taints) assert.ok(wanted.tolerations.includes(taint));
    assert.ok(wanted.image === null || found.has_image);
    assert.ok(wanted.egress_mode === 'open' || found.enforces_egress);
    const stays = found.id === wanted.last && (wanted.unsaved || wanted.may_stay);
    assert.ok(!found.cordoned || stays);
  });
});

const freeMib = ({ capacity, used_memory_mib }: Candidate) => (capacity?.memory_mib ?? 0) - used_memory_mib;

test('the order of the hosts matters only between equal ones, of which the first is chosen', () => {
  holds((all, wanted) => {
    const found = chosen(all, wanted);
    if (!found) return;
    const merits = (each: Candidate) => [
      each.cordoned,
      canResume(each, wanted),
      each.id === wanted.avoided,
      each.id === wanted.last,
      each.org_vms,
      freeMib(each),
    ];
    const other = chosen([...all].reverse(), wanted);
    assert.deepEqual(other && merits(other), merits(found));
    const twin = { ...found, id: 'host_twin' as HostId };
    if (found.id !== wanted.last) assert.equal(chosen([twin, ...all], wanted), twin);
    if (found.id !== wanted.avoided) assert.equal(chosen([...all, twin], wanted), found);
  });
});

test('saved memory is resumed only where the object store answers, and rather not where that has just failed', () => {
  holds((all, wanted) => {
    const found = chosen(all, wanted);
    // Only its last VM's host may be cordoned, and the twin is another one.
    if (!found || !wanted.resumes || found.cordoned) return;
    assert.equal(found.store_problem, null);
    const twin = { ...found, id: 'host_twin' as HostId };
    if (!wanted.unsaved || found.id !== wanted.last)
      assert.equal(chosen([found, twin], { ...wanted, avoided: found.id }), twin);
  });
});

test('a host is found if and only if one qualifies, and else a reason', () => {
  holds((all, wanted) => {
    const found = choose(all, wanted);
    assert.equal(
      'host' in found,
      all.some((each) => qualifies(each, wanted)),
    );
    if ('reason' in found) assert.match(found.reason, /^(No|Every) .+\.$/);
  });
});

test('the host with the only copy of some writes is chosen if it qualifies at all', () => {
  holds((all, wanted) => {
    const last = all.find(({ id }) => id === wanted.last);
    if (last && wanted.unsaved && qualifies(last, wanted)) assert.equal(chosen(all, wanted), last);
  });
});

test('preferred are, in this order: memory that can be resumed, a host that did not just fail, a warm overlay, few VMs of the organisation, free memory', () => {
  holds((all, wanted) => {
    const found = chosen(all, wanted);
    if (!found || wanted.unsaved) return;
    const open = all.filter((each) => !each.cordoned && qualifies(each, wanted));
    if (open.length === 0) return assert.ok(found.cordoned);
    const resuming = open.filter((each) => canResume(each, wanted));
    if (resuming.length > 0) assert.ok(resuming.includes(found));
    const able = resuming.length > 0 ? resuming : open;
    const others = able.filter(({ id }) => id !== wanted.avoided);
    const equal = others.length > 0 ? others : able;
    const warm = equal.find(({ id }) => id === wanted.last);
    if (warm) return assert.equal(found, warm);
    assert.equal(found.org_vms, Math.min(...equal.map(({ org_vms }) => org_vms)));
    const few = equal.filter(({ org_vms }) => org_vms === found.org_vms);
    assert.equal(freeMib(found), Math.max(...few.map(freeMib)));
  });
});
