/** The checker finds each broken promise in a history that breaks only this one. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { check, ELSEWHERE_MS } from './checker.ts';
import type { Boot, Call, Event, GenerationRow, Head, VmRow, Written } from './history.ts';

const instance = 'inst_a';
const boot = (at_ms: number, epoch: number, newest: number, more: Partial<Boot> = {}): Boot => ({
  ...{ kind: 'boot', at_ms, instance, epoch, boot_id: `b${epoch}`, newest, state: 'ok' },
  ...more,
});
const record = (at_ms: number, epoch: number, number: number): Written => ({
  ...{ kind: 'record', at_ms, instance, epoch, boot_id: `b${epoch}`, number },
});
const call = (began_ms: number, at_ms: number, verb: Call['verb'], more: Partial<Call> = {}): Call => ({
  ...{ kind: 'call', began_ms, at_ms, verb, at: 'control-1', instance, outcome: 'ok', what: '200' },
  ...more,
});
const vm = (number: number, epoch: number, host = `rack-${number}`): VmRow => ({
  ...{ kind: 'vm', instance, boot: number, epoch, host },
});
const generation = (number: number, epoch: number, parent: number | null = number - 1): GenerationRow => ({
  ...{ kind: 'generation', instance, generation: number, parent: parent === 0 ? null : parent, epoch },
});
const head = (number: number, newest: number): Head => ({
  ...{ kind: 'head', at_ms: 1_000_000, instance, generation: number, newest },
});
const runs = (at_ms: number, running: string[], paused: string[] = []): Event => ({
  ...{ kind: 'processes', at_ms, instance, running, paused },
});

const loss = (at_ms: number): Event => ({ kind: 'loss', at_ms, id: `evt_${at_ms}`, instance });
const suspended = (at_ms: number, of: number) =>
  call(at_ms - 1, at_ms, 'suspend', { boot: of, what: 'suspended' });

/** One instance is flushed, loses its host with one unflushed record, and is stopped elsewhere. */
const GOOD: readonly Event[] = [
  runs(1, ['rack-1:10']),
  boot(2, 1, 0),
  record(3, 1, 1),
  record(4, 1, 2),
  call(5, 7, 'flush', { generation: 1 }),
  record(8, 1, 3),
  { kind: 'lost', at_ms: 9, host: 'rack-1', instances: [instance] },
  runs(20, [], ['rack-1:10']),
  runs(30, ['rack-2:10'], ['rack-1:10']),
  boot(31, 2, 2),
  loss(31.5),
  record(32, 2, 3),
  call(33, 40, 'stop', { boot: 2 }),
  ...[vm(1, 1), vm(2, 2), generation(1, 1), generation(2, 2), head(2, 3)],
];

function found(events: readonly Event[]): string {
  const wrong = check(events);
  assert.equal(wrong.length, 1, wrong.join('\n'));
  return wrong[0] ?? '';
}
/** The good history with one event in place of the last that `like` accepts, or at the end. */
function instead(like: (event: Event) => boolean, event: Event): Event[] {
  return GOOD.with(GOOD.findLastIndex(like), event);
}

test('a history in which every promise is kept has no violation', () => assert.deepEqual(check(GOOD), []));

test('two running VMs of an instance are found, and a paused one beside its successor is none', () => {
  assert.match(
    found([...GOOD, runs(50, ['rack-1:10', 'rack-2:10'])]),
    /runs twice at 50: rack-1:10 and rack-2:10/,
  );
});

test('an epoch that does not grow is found, and a boot whose epoch no VM has', () => {
  assert.match(found([...GOOD, vm(3, 2)]), /boot 3 has epoch 2 after boot 2 with 2/);
  assert.match(found([...GOOD, boot(50, 9, 3)]), /epoch 9, which no VM has/);
});

test('a record that a receipt covers is missing at the next boot', () => {
  const lost = instead((event) => event.kind === 'boot', boot(31, 2, 1));
  assert.match(found(lost), /boot b2 at 31 has record 1, but the receipt of generation 1 covers 2/);
});

test('a record that was written after the receipt may be missing, also if it was seen before the receipt came', () => {
  const is_third = (event: Event) => event.kind === 'record' && event.at_ms === 8;
  const during = [...GOOD.filter((event) => !is_third(event)), record(5.5, 1, 3)].toSorted((a, b) =>
    'at_ms' in a && 'at_ms' in b ? a.at_ms - b.at_ms : 0,
  );
  assert.deepEqual(check(during), []);
});

test('a record that the guest before has fsynced is missing at the next boot on the same host', () => {
  const there = GOOD.map((event) => (event.kind === 'vm' ? vm(event.boot, event.epoch, 'rack-1') : event));
  assert.match(found(there), /boot b2 at 31 has record 2, but an fsync at epoch 1 on rack-1 covers 3/);
});

test('a record that a stop covers is missing in the head', () => {
  assert.match(
    found(instead((event) => event.kind === 'head', head(2, 2))),
    /the head, .* has record 2, but the stop at 40 covers 3/,
  );
});

test('records that a paused VM reported late are not covered by the receipts of its successor', () => {
  const late = [...GOOD, record(41, 1, 900), call(42, 45, 'flush', { generation: 2 })];
  assert.deepEqual(check(late), []);
});

test('a fork without a record that its origin had flushed before is found', () => {
  const forked = call(41, 42, 'fork', { made: 'inst_b' });
  const of = (newest: number) => [...GOOD, forked, boot(60, 1, newest, { instance: 'inst_b' })];
  assert.deepEqual(check(of(3)), []);
  assert.match(
    found(of(1)),
    /^inst_b: boot b1 at 60 has record 1, but .* of inst_a, whose fork it is, covers 3/,
  );
});

test('a receipt whose generation is no ancestor of the head was taken back', () => {
  const other = [
    ...instead((event) => event.kind === 'generation' && event.generation === 2, generation(2, 2, null)),
  ];
  const chain = [...other, generation(3, 2, 1), call(41, 42, 'flush', { generation: 2 })];
  const now = chain.map((event): Event => (event.kind === 'head' ? head(3, 3) : event));
  assert.match(found(now), /the receipt of generation 2 was taken back; the head is 3/);
});

test('an instance of a lost host that runs elsewhere too late, or never, is found', () => {
  const late = GOOD.map((event) => (event.kind === 'lost' ? { ...event, at_ms: 25 - ELSEWHERE_MS } : event));
  assert.match(found(late), /ran elsewhere only after 600[0-9]+ ms/);
  const never = GOOD.map((event) => (event.kind === 'lost' ? { ...event, at_ms: 45 } : event));
  assert.match(found(never), /of the lost rack-1 never ran elsewhere/);
});

test('an error that a guest saw, a damaged disk, a wrong answer, and what did not come back are found', () => {
  assert.match(
    found([...GOOD, { kind: 'guest error', at_ms: 50, instance, what: 'write 7: I/O error' }]),
    /has seen: write 7/,
  );
  assert.match(found([...GOOD, boot(50, 2, 3, { state: 'slot 4 has 0' })]), /slot 4 has 0/);
  assert.match(
    found([...GOOD, call(50, 51, 'start', { outcome: 'wrong', what: '500' })]),
    /start of inst_a at control-1 was answered: 500/,
  );
  assert.match(found([...GOOD, { kind: 'stuck', at_ms: 50, what: 'rack-1' }]), /not back in time: rack-1/);
});

test('an older disk of which no event says so is found', () => {
  const silent = GOOD.filter((event) => event.kind !== 'loss');
  assert.match(found(silent), /boot b2 at 31 has record 2 after the fsync of 3, and no event says recovered/);
});

test('a VM on an empty disk may have lost what was not flushed, and only that', () => {
  const there = GOOD.map((event) => (event.kind === 'vm' ? vm(event.boot, event.epoch, 'rack-1') : event));
  const replaced = [...there, { kind: 'new disk', at_ms: 9, host: 'rack-1' } as const];
  assert.deepEqual(check(replaced), []);
  const less = replaced.map((event) => (event.kind === 'boot' && event.epoch === 2 ? boot(31, 2, 1) : event));
  assert.match(found(less), /has record 1, but the receipt of generation 1 covers 2/);
});

test('memory that runs a second time is found', () => {
  assert.match(
    found([...GOOD, record(50, 3, 4), record(51, 3, 4)]),
    /memory of boot b3 runs a second time: record 4 at 51 after 4/,
  );
});

test('a boot instead of a resume is found, unless an event says so or the memory had run', () => {
  const cold = [...GOOD, vm(3, 3), suspended(50, 2), boot(60, 3, 3)];
  assert.match(found(cold), /boot b3 at 60 lacks the memory that was saved at 50, and no event says so/);
  assert.deepEqual(check([...cold, loss(61)]), []);
  const resumed = { ...record(55, 3, 4), boot_id: 'b2' };
  assert.deepEqual(check([...cold.with(-1, boot(60, 3, 4)), resumed]), []);
  assert.deepEqual(check([...cold, { kind: 'fault', at_ms: 55, what: 'rack-2 kill VM (1.0 s)' }]), []);
});

test('after a restore of the database what was covered before its copy is there, and later losses are reported', () => {
  const restored = (copied_ms: number): Event[] => [
    ...GOOD.filter(({ kind }) => kind !== 'head'),
    { kind: 'restored', at_ms: 45, copied_ms },
    // The stop's generation is not known any more, and its number comes again.
    ...[vm(1, 1), vm(2, 2), generation(1, 1), generation(2, 2)],
    boot(50, 2, 2, { boot_id: 'b3' }),
    loss(51),
    head(2, 2),
  ];
  assert.deepEqual(check(restored(35)), []);
  const covered = check(restored(42));
  assert.equal(covered.length, 2, covered.join('\n'));
  assert.match(covered[0] ?? '', /boot b3 at 50 has record 2, but the stop at 40 covers 3/);
  const silent = restored(35).filter((event) => event.kind !== 'loss' || event.at_ms !== 51);
  assert.match(found(silent), /boot b3 at 50 has record 2 after the fsync of 3, and no event says recovered/);
});

test('after a restore, a receipt of a new VM does not cover what an earlier guest wrote at the same epoch', () => {
  const restored = (ended_ms: number): Event[] => [
    ...GOOD.filter(({ kind }) => kind !== 'head'),
    { kind: 'restored', at_ms: 45, copied_ms: 35 },
    // The guest of the VM that the database does not know any more runs on, and its epoch comes again.
    ...[record(46, 3, 9), runs(ended_ms, [], []), vm(3, 3), generation(2, 3)],
    call(50, 52, 'flush', { generation: 2 }),
    boot(51, 3, 2, { boot_id: 'new' }),
    loss(52),
    boot(60, 4, 2, { boot_id: 'newer' }),
  ];
  assert.deepEqual(check(restored(47)), []);
  assert.match(
    found(restored(55)),
    /boot newer at 60 has record 2, but the receipt of generation 2 covers 9/,
  );
});
