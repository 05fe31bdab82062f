/** Tools for saved states of a disk: flush, list, fork, restore. */
import { Type } from 'typebox';
import type { Generation } from '../../client/src/berth.ts';
import { NEW_NAME, pageText } from './instance-tools.ts';
import { ADDS, CURSOR, DESTROYS, fields, INSTANCE, LIMIT, READS, SETS, type Tool, tool } from './tool.ts';
import { PATIENCE_MS, startNew } from './wait-for-vm.ts';

const NUMBER = Type.Integer({
  minimum: 0,
  maximum: Number.MAX_SAFE_INTEGER,
  description: 'From list_generations or flush',
});

function lineOf({ generation, created_at, trigger, name, pinned, bytes }: Generation): string {
  const marks = [...(name === null ? [] : [`“${name}”`]), ...(pinned ? ['pinned'] : [])];
  return [generation, created_at, trigger, `${bytes} bytes`, ...marks].join('  ');
}

const FLUSH = tool({
  name: 'flush',
  title: 'Save the disk',
  description:
    'Makes everything that the guest has written so far durable, as a new generation, while it runs. Memory and processes are not part of it.',
  input: fields({ instance: INSTANCE }),
  hints: SETS,
  run: async ({ berth, args, signal }) => {
    const { id, name } = await berth.instances.find(args.instance, { signal });
    const patience = AbortSignal.timeout(PATIENCE_MS);
    const receipt = await berth.instances
      .flushVm(id, { signal: AbortSignal.any([signal, patience]) })
      .catch((error: unknown) => {
        if (signal.aborted || !patience.aborted) throw error;
        return null;
      });
    if (receipt === null)
      return { text: `The flush of ${name} goes on. get_instance shows its generation once it is durable.` };
    const { generation, uploaded_bytes } = receipt;
    return {
      text: `The disk of ${name} is durable as generation ${generation}; ${uploaded_bytes} bytes were new.`,
    };
  },
});

const LIST = tool({
  name: 'list_generations',
  title: 'List saved states of a disk',
  description:
    'Lists the generations of an instance, newest first: number, time, what made it, bytes that were new, name.',
  input: fields({ instance: INSTANCE, limit: LIMIT, cursor: CURSOR }),
  hints: READS,
  run: async ({ berth, args: { instance, ...query }, signal }) => {
    const { id } = await berth.instances.find(instance, { signal });
    const { data, next_cursor } = await berth.call('listGenerations', { path: { id }, query }, { signal });
    return {
      text: pageText(data.map(lineOf), next_cursor, 'There are no generations yet; flush makes one.'),
    };
  },
});

const FORK = tool({
  name: 'fork_instance',
  title: 'Fork an instance',
  description:
    'Creates a new instance with the disk of another, as of its newest generation or a given one, and starts it. The other one runs on and is not changed. What it has not flushed is not in the fork: flush first.',
  input: fields({
    instance: INSTANCE,
    name: NEW_NAME,
    generation: Type.Optional(NUMBER),
    start: Type.Optional(Type.Boolean({ default: true })),
  }),
  hints: ADDS,
  run: async ({ berth, args: { instance, start = true, ...body }, signal }) => {
    const parent = await berth.instances.find(instance, { signal });
    const fork = await berth.call('forkInstance', { path: { id: parent.id }, body }, { signal });
    const { generation, dirty_bytes } = fork.forked_from ?? { generation: 0, dirty_bytes: 0 };
    const missing =
      dirty_bytes > 0 ? ` ${dirty_bytes} bytes that ${parent.name} had not flushed are not in it.` : '';
    const state = start ? await startNew(berth, fork, signal) : 'It is stopped.';
    return { text: `Forked ${parent.name}, generation ${generation}, as ${fork.name}.${missing} ${state}` };
  },
});

const RESTORE = tool({
  name: 'restore_generation',
  title: 'Set a disk back',
  description:
    'Sets the disk of a stopped instance back to a generation, as a new generation. Lost from the disk: everything written after that generation. The generations between stay in list_generations, so a restore of the newest of them undoes it, as long as they are kept. Needs stop_instance first.',
  input: fields({ instance: INSTANCE, generation: NUMBER }),
  hints: { ...DESTROYS, idempotentHint: false },
  run: async ({ berth, args: { instance, generation }, signal }) => {
    const { id, name, disk } = await berth.instances.find(instance, { signal });
    const input = { path: { id }, body: { generation } };
    const restored = await berth.call('restoreInstance', input, { signal });
    const now = restored.disk.generation;
    return {
      text: `The disk of ${name} is as in generation ${generation}; that is generation ${now}. To undo: restore_generation ${disk.generation}.`,
    };
  },
});

export const GENERATION_TOOLS: readonly Tool[] = [FLUSH, LIST, FORK, RESTORE];
