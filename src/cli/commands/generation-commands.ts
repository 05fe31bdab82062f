/** Commands on a disk's generations: list, pin, name, restore, fork. */
import type { Berth, Generation } from '../../../client/src/berth.ts';
import type { Call, Command } from '../command.ts';
import { collect } from '../reading.ts';
import { parentName } from '../session.ts';
import { cell, flagCell, numberCell, sizeCell, timeCell } from '../table.ts';
import { YES } from '../terminal.ts';
import { watched } from '../waiting.ts';
import { whileStopped } from '../while-stopped.ts';
import { FORK } from './fork-command.ts';
import { generationOf, withGeneration } from './generation-number.ts';

const MADE_BY: Readonly<Record<Exclude<Generation['trigger'], 'fork' | 'restore'>, string>> = {
  request: 'flush',
  auto: 'automatic flush',
  stop: 'stop',
  suspend: 'suspend',
  import: 'import of a file',
};

/** What made each generation, for people; a fork's parent by its name while it exists. */
async function makerOf(berth: Berth, found: readonly Generation[]): Promise<(of: Generation) => string> {
  const forked = found.find(({ trigger }) => trigger === 'fork')?.origin;
  const parent = forked && (await parentName(berth, forked.instance_id));
  return ({ trigger, origin }) => {
    if (trigger === 'restore') return `restored from ${origin?.generation}`;
    return trigger === 'fork' ? `forked from ${parent}, generation ${origin?.generation}` : MADE_BY[trigger];
  };
}

async function list({ session, args, terminal }: Call): Promise<undefined> {
  const berth = session.berth();
  const { id, name, disk, vm } = await berth.instances.find(args[0] ?? '');
  const found = await collect(berth.list('listGenerations', { path: { id }, query: { limit: 200 } }));
  // Only a list with columns has it, also as CSV.
  const has_columns = terminal.format === 'human' || terminal.format === 'records';
  const madeBy = has_columns ? await makerOf(berth, found) : () => '';
  terminal.list(found, {
    headings: [
      'GENERATION',
      'CREATED',
      { for_people: 'MADE BY' },
      'SAVED',
      'UPLOADED',
      'CONSISTENCY',
      'PINNED',
      'NAME',
    ],
    row: (each) => [
      cell(`${each.generation}${each.generation === disk.generation ? ' *' : ''}`, each.generation),
      timeCell(each.created_at),
      madeBy(each),
      sizeCell(each.dirty_bytes),
      sizeCell(uploadedBy(each)),
      each.consistency,
      flagCell(each.pinned),
      each.name ?? '-',
    ],
    more: {
      headings: ['CURRENT', 'TRIGGER', 'ORIGIN INSTANCE', 'ORIGIN GENERATION'],
      row: ({ generation, trigger, origin }) => [
        flagCell(generation === disk.generation),
        trigger,
        origin?.instance_id ?? '-',
        numberCell(origin?.generation ?? null),
      ],
    },
    quiet: ({ generation }) => String(generation),
    empty: `No generations yet. ${vm.state === 'running' ? `Create one: berth flush ${name}` : `The first is made while it runs: berth start ${name}`}`,
  });
  return undefined;
}

/** A fork and a restore upload nothing: their generation has the objects of its origin. */
const uploadedBy = ({ trigger, bytes }: Generation) =>
  trigger === 'fork' || trigger === 'restore' ? null : bytes;

type Change = { readonly pinned?: boolean; readonly name?: string | null };

/** @param told the message afterwards */
async function change(call: Call, body: Change, told: (made: Generation) => string): Promise<undefined> {
  const { session, args, terminal } = call;
  const berth = session.berth();
  const instance = await berth.instances.find(args[0] ?? '');
  const generation = String(await generationOf(berth, instance, args[1]));
  const made = await withGeneration(instance, () =>
    berth.call('changeGeneration', { path: { id: instance.id, generation }, body }),
  );
  terminal.done(`${instance.name}: generation ${generation} ${told(made)}`, made, generation);
}

async function restore(call: Call): Promise<undefined> {
  const { session, args, terminal } = call;
  const berth = session.berth();
  const instance = await berth.instances.find(args[0] ?? '');
  const generation = await generationOf(berth, instance, args[1]);
  const { id, name } = instance;
  const { result, runs_again } = await whileStopped(call, berth, instance, {
    doing: `restore generation ${generation}`,
    work: () =>
      watched(call, `restoring ${name}`, 'the server goes on restoring', `berth show ${name}`, () =>
        withGeneration(instance, () =>
          berth.call('restoreInstance', { path: { id }, body: { generation } }, { signal: call.signal }),
        ),
      ),
  });
  const now = result.disk.generation;
  const then = runs_again ? `It runs again: berth ssh ${name}` : `Start it: berth start ${name}`;
  terminal.done(
    `${name} has the files of generation ${generation} again, as generation ${now}. ${then}`,
    runs_again ? await berth.instances.get(id) : result,
    String(now),
  );
}

export const GENERATION_COMMANDS: readonly Command[] = [
  {
    name: 'generation ls',
    short: ['generations'],
    args: ['NAME'],
    names_instances: true,
    summary: 'list the generations of a disk that are kept, newest first; * is the current one',
    example: 'berth generations web',
    run: list,
  },
  {
    name: 'generation pin',
    args: ['NAME', 'GENERATION'],
    names_instances: true,
    summary: 'keep a generation, however old it gets',
    example: 'berth generation pin web 42',
    run: (call) => change(call, { pinned: true }, () => 'is pinned.'),
  },
  {
    name: 'generation unpin',
    args: ['NAME', 'GENERATION'],
    names_instances: true,
    summary: 'apply retention to a generation again',
    example: 'berth generation unpin web 42',
    run: (call) => change(call, { pinned: false }, () => 'is no longer pinned.'),
  },
  {
    name: 'generation name',
    args: ['NAME', 'GENERATION', '[TEXT]'],
    fields: { name: 'TEXT' },
    names_instances: true,
    summary: 'name a generation, or remove its name',
    example: "berth generation name web 42 'before the upgrade'",
    run: (call) =>
      change(call, { name: call.args[2] ?? null }, ({ name }) =>
        name === null ? 'has no name.' : `is called ${name}.`,
      ),
  },
  {
    name: 'instance restore',
    short: ['restore'],
    args: ['NAME', 'GENERATION'],
    names_instances: true,
    summary: 'set the disk back to an older generation, at once; later ones are kept',
    details: 'A running VM is stopped for it, and started again.',
    example: 'berth restore web 42',
    options: YES,
    run: restore,
  },
  FORK,
];
