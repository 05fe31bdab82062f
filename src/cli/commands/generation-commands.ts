/** Commands on a disk's generations: list, pin, name, restore, fork. */
import { BerthError, type Generation, type Instance } from '../../../client/src/berth.ts';
import type { Call, Command } from '../command.ts';
import { CommandError, UsageError } from '../command-error.ts';
import { EXIT } from '../exit-codes.ts';
import { ago, bytes } from '../format.ts';
import { instanceName } from '../numbers.ts';
import { collect } from '../reading.ts';
import { watched } from '../waiting.ts';
import { whileStopped } from '../while-stopped.ts';

function generationNumber(text = ''): number {
  if (/^\d{1,9}$/.test(text)) return Number(text);
  throw new UsageError(`a generation is a number of berth generations NAME, not ${text}`);
}

/** Explains a 404 of a generation: the instance may exist. */
async function withGeneration<T>({ name }: Instance, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (!(error instanceof BerthError) || error.code !== 'NOT_FOUND') throw error;
    throw new CommandError(error.message, { next: `berth generations ${name}`, exit_code: EXIT.not_found });
  }
}

async function list({ session, args, terminal }: Call): Promise<undefined> {
  const berth = session.berth();
  const { id, name, disk } = await berth.instances.find(args[0] ?? '');
  const pages = berth.list('listGenerations', { path: { id }, query: { limit: 200 } });
  terminal.list(await collect(pages), {
    headings: ['GENERATION', 'MADE', 'SAVED', 'CONSISTENCY', 'PINNED', 'NAME'],
    row: (each) => [
      `${each.generation}${each.generation === disk.generation ? ' *' : ''}`,
      ago(each.created_at),
      bytes(each.bytes),
      each.consistency,
      each.pinned ? 'yes' : '-',
      each.name ?? '-',
    ],
    quiet: ({ generation }) => String(generation),
    empty: `None yet. Make one: berth flush ${name}`,
  });
  return undefined;
}

type Change = { readonly pinned?: boolean; readonly name?: string | null };

/** @param told the message afterwards */
async function change(call: Call, body: Change, told: (made: Generation) => string): Promise<undefined> {
  const { session, args, terminal } = call;
  const generation = String(generationNumber(args[1]));
  const berth = session.berth();
  const instance = await berth.instances.find(args[0] ?? '');
  const made = await withGeneration(instance, () =>
    berth.call('changeGeneration', { path: { id: instance.id, generation }, body }),
  );
  terminal.done(`${instance.name}: generation ${generation} ${told(made)}`, made, generation);
}

async function restore(call: Call): Promise<undefined> {
  const { session, args, terminal } = call;
  const generation = generationNumber(args[1]);
  const berth = session.berth();
  const instance = await berth.instances.find(args[0] ?? '');
  const { id, name } = instance;
  const look = `berth show ${name}`;
  const restored = await watched(call, `restoring ${name}`, 'the server goes on restoring', look, () =>
    withGeneration(instance, () =>
      whileStopped(berth, instance, () =>
        berth.call('restoreInstance', { path: { id }, body: { generation } }, { signal: call.signal }),
      ),
    ),
  );
  const now = restored.disk.generation;
  const sentence = `${name} has the files of generation ${generation} again, as generation ${now}. Start it: berth start ${name}`;
  terminal.done(sentence, restored, String(now));
}

async function fork(call: Call): Promise<undefined> {
  const { session, args, options, terminal, signal } = call;
  const asked = options.text('generation');
  const generation = asked === undefined ? undefined : generationNumber(asked);
  const new_name = instanceName(args[1] ?? '');
  const berth = session.berth();
  const instance = await berth.instances.find(args[0] ?? '');
  const { id, name } = instance;
  const body = { name: new_name, generation };
  const forking = async () => {
    try {
      return await berth.call('forkInstance', { path: { id }, body }, { signal });
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
  const sentence = `${new_name} is a fork of ${name}, generation ${made.disk.generation}. Start it: berth start ${new_name}`;
  terminal.done(sentence, made, made.id);
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
    summary: 'set the disk of a stopped instance back to an older generation, at once; later ones are kept',
    example: 'berth stop web && berth restore web 42',
    run: restore,
  },
  {
    name: 'instance fork',
    short: ['fork'],
    args: ['NAME', 'NEW-NAME'],
    names_instances: true,
    summary:
      'create an instance with the disk of another as of its last flush; at once, because nothing is copied',
    example: 'berth fork web web-2',
    options: {
      generation: {
        type: 'string',
        value: 'N',
        help: 'the disk as of this generation; default: the last one',
      },
    },
    run: fork,
  },
];
