/**
 * The commands on a disk's generations: list, pin, name and restore them, and fork an instance. The user names a
 * generation by its number, or by the name that a user gave it.
 */
import { type Berth, BerthError, type Generation, type Instance } from '../../../client/src/berth.ts';
import { type Call, type Command, INSTANCE } from '../command.ts';
import { CommandError, EXIT, UsageError } from '../command-error.ts';
import { collect } from '../reading.ts';
import { parentName } from '../session.ts';
import { bytes, cell, flagCell, numberCell, sizeCell, timeCell } from '../table.ts';
import { YES } from '../terminal.ts';
import { instanceName } from '../values.ts';
import { watched, whileStopped } from '../waiting.ts';

/** Digits are a number, also where a generation has them as its name. @throws CommandError for no such name, or several */
export async function generationOf(
  berth: Berth,
  { id, name: instance }: Pick<Instance, 'id' | 'name'>,
  text = '',
): Promise<number> {
  if (/^\d{1,9}$/.test(text)) return Number(text);
  const all = await collect(berth.list('listGenerations', { path: { id }, query: { limit: 200 } }));
  const found = all.filter(({ name }) => name === text);
  const [first] = found;
  if (first === undefined)
    throw new CommandError(`${instance} has no generation called ${text}`, {
      next: `berth generations ${instance}`,
      exit_code: EXIT.not_found,
    });
  if (found.length === 1) return first.generation;
  const numbers = found.map(({ generation }) => generation).join(', ');
  throw new CommandError(`“${text}” stands for several generations of ${instance}: ${numbers}`, {
    next: 'the same with one of these numbers',
    exit_code: EXIT.usage,
  });
}

/** Explains a 404 of a generation: the instance may exist. */
export async function withGeneration<T>(
  { name }: Pick<Instance, 'name'>,
  work: () => Promise<T>,
): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (!(error instanceof BerthError) || error.code !== 'NOT_FOUND') throw error;
    throw new CommandError(error.message, { next: `berth generations ${name}`, exit_code: EXIT.not_found });
  }
}

const MAY_HAVE_UNSAVED: readonly Instance['vm']['state'][] = ['running', 'restarting'];

/** The fork begins with the last saved state, so a running parent is flushed first. */
async function flushParent(call: Call, berth: Berth, { id, name, vm }: Instance) {
  if (!MAY_HAVE_UNSAVED.includes(vm.state)) return;
  const look = `berth show ${name}`;
  try {
    const { dirty_bytes, generation } = await watched(
      call,
      `flushing ${name}`,
      'the server goes on flushing',
      look,
      () => berth.instances.flushVm(id, { signal: call.signal }),
    );
    if (dirty_bytes > 0)
      call.terminal.say(`Flushed ${name} first: ${bytes(dirty_bytes)} saved as generation ${generation}.`);
  } catch (error) {
    // It stopped meanwhile, which has saved everything, or it failed: the answer of the fork tells what is missing.
    if (!(error instanceof BerthError)) throw error;
    if (error.status === 409) return;
    throw new CommandError(error.message, { again: '--no-flush', exit_code: EXIT.unavailable });
  }
}

async function fork(call: Call): Promise<undefined> {
  const { session, args, options, terminal, signal } = call;
  const asked = options.text('generation');
  const no_flush = options.flag('no-flush');
  const secrets = options.flag('secrets');
  if (asked !== undefined && no_flush)
    throw new UsageError('--generation names a saved state, so nothing is flushed: omit --no-flush');
  const new_name = instanceName(args[1] ?? '');
  const berth = session.berth();
  const instance = await berth.instances.find(args[0] ?? '');
  const { id, name } = instance;
  const generation = asked === undefined ? undefined : await generationOf(berth, instance, asked);
  if (generation === undefined && !no_flush) await flushParent(call, berth, instance);
  const forking = async () => {
    try {
      return await berth.call(
        'forkInstance',
        { path: { id }, body: { name: new_name, generation, ...(secrets ? { secrets } : {}) } },
        { signal },
      );
    } catch (error) {
      const nothing_yet = instance.disk.generation === 0 && generation === undefined;
      if (!(error instanceof BerthError) || error.code !== 'CONFLICT' || !nothing_yet) throw error;
      const next = instance.vm.state === 'running' ? `berth flush ${name}` : `berth start ${name}`;
      throw new CommandError(error.message, { next, exit_code: EXIT.state });
    }
  };
  const made = await watched(call, `forking ${name}`, 'the server goes on forking', 'berth ls', () =>
    withGeneration(instance, forking),
  );
  const missing = generation === undefined ? (made.forked_from?.dirty_bytes ?? 0) : 0;
  const without = missing > 0 ? `, without ${bytes(missing)} that ${name} had not saved` : '';
  terminal.done(
    `Created ${new_name}, a fork of ${name} as of generation ${made.disk.generation}${without}. Start it: berth start ${new_name}`,
    made,
    made.id,
  );
}

export const FORK: Command = {
  name: 'instance fork',
  short: ['fork'],
  args: ['NAME', 'NEW-NAME'],
  fields: { name: 'NEW-NAME' },
  names_instances: true,
  summary: 'create an instance with the disk of another, at once',
  details: 'Nothing is copied. A running one is flushed first.',
  example: 'berth fork web web-2',
  options: {
    generation: {
      type: 'string',
      value: 'GENERATION',
      help: 'the disk as of this generation, by number or name; default: the current state',
    },
    'no-flush': {
      type: 'boolean',
      help: 'the disk as of the last flush: leave out what a running instance has not saved',
    },
    secrets: {
      type: 'boolean',
      field: 'secrets',
      help: 'with the values of the secrets, which needs the right to write them; default: names and hosts only',
    },
  },
  run: fork,
};

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
    ...INSTANCE,
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
