/** `berth fork`: saves what a running parent has written, then forks. */
import { type Berth, BerthError, type Instance } from '../../../client/src/berth.ts';
import type { Call, Command } from '../command.ts';
import { CommandError, UsageError } from '../command-error.ts';
import { EXIT } from '../exit-codes.ts';
import { instanceName } from '../numbers.ts';
import { bytes } from '../table.ts';
import { watched } from '../waiting.ts';
import { generationOf, withGeneration } from './generation-number.ts';

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
