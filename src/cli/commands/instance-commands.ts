/** Commands on instances. */
import type { Instance } from '../../../client/src/berth.ts';
import { type Call, type Command, NO_WAIT, type Option } from '../command.ts';
import { UsageError } from '../command-error.ts';
import { STATES } from '../complete-values.ts';
import { instanceName } from '../numbers.ts';
import { collect } from '../reading.ts';
import { savedState } from '../saved-state.ts';
import { parentName } from '../session.ts';
import { numberCell, sizeCell, timeCell } from '../table.ts';
import { confirm, YES } from '../terminal.ts';
import { waitFor, watched } from '../waiting.ts';
import { whileStopped } from '../while-stopped.ts';
import { growthWords, labelsText, rowsOf, stateOf } from './instance-rows.ts';
import { DEFAULTS, SETTINGS, settingsOf, sizesOf, USER_DATA, userDataOf } from './instance-settings.ts';

async function show({ terminal, session }: Call, instance: Instance): Promise<undefined> {
  const { forked_from } = instance;
  const named = forked_from !== null && terminal.format === 'human';
  const parent = named ? await parentName(session.berth(), forked_from.instance_id) : '';
  terminal.one(instance, { rows: (each) => rowsOf(each, parent), quiet: ({ id }) => id });
}

async function create(call: Call): Promise<undefined> {
  const name = instanceName(call.args[0] ?? '');
  const berth = call.session.berth();
  const image = call.options.text('image');
  const body = { ...settingsOf(call), user_data: await userDataOf(call) };
  const instance = await berth.instances.create({ name, image, ...body });
  if (!call.options.flag('start')) {
    return void call.terminal.done(`Created ${name}. Start it: berth start ${name}`, instance, instance.id);
  }
  await berth.instances.startVm(instance.id);
  await waitFor(call, berth, instance, 'running', 'starting');
  const now = await berth.instances.get(instance.id);
  call.terminal.done(`Created and started ${name}. Log in: berth ssh ${name}`, now, instance.id);
}

async function remove(call: Call): Promise<undefined> {
  const { args, options, session, terminal, signal } = call;
  const berth = session.berth();
  const found = await Promise.all(args.map((each) => berth.instances.find(each)));
  const names = found.map(({ name }) => name).join(', ');
  await confirm(call, {
    ask: `Delete ${names} with everything on the disk?`,
    refusal: `this deletes ${names} with everything on the disk`,
    undone: 'nothing was deleted',
  });
  for (const { id } of found) await berth.instances.delete(id);
  for (const { id, name } of options.flag('no-wait') ? [] : found) {
    await watched(call, `deleting ${name}`, `the server goes on deleting ${name}`, 'berth ls', (onVm) =>
      berth.instances.waitUntilDeleted(id, { signal, onVm }),
    );
  }
  terminal.done(options.flag('no-wait') ? `Deleting ${names}.` : `Deleted ${names}.`, {
    deleted: found.map(({ id }) => id),
  });
}

export const INSTANCE_COMMANDS: readonly Command[] = [
  {
    name: 'instance ls',
    short: ['ls'],
    summary: 'list instances',
    example: 'berth ls --state running',
    options: {
      state: {
        type: 'string',
        value: 'STATE',
        choices: STATES,
        help: 'only instances in this state: running, stopped, failed, …',
      },
      label: {
        type: 'string',
        short: 'l',
        value: 'KEY=VALUE',
        multiple: true,
        help: 'only instances with this label, or KEY alone; repeatable: all must match',
      },
    },
    run: async ({ session, options, terminal }) => {
      const [state, label] = [options.text('state') as Instance['vm']['state'], options.list('label')];
      const instances = await collect(
        session.berth().instances.list({ state, label: label && [...label], limit: 200 }),
      );
      terminal.list(instances, {
        headings: ['NAME', 'STATE', 'CPUS', 'MEMORY', 'DISK', { for_people: 'SAVED' }, 'CREATED'],
        row: (each) => [
          each.name,
          stateOf(each),
          numberCell(each.cpus),
          sizeCell(each.memory_mib * 2 ** 20),
          sizeCell(each.disk_gib * 2 ** 30),
          savedState(each),
          timeCell(each.created_at),
        ],
        more: {
          headings: ['UNSAVED', 'GENERATION', 'SSH', 'LABELS', 'IMAGE', 'ID'],
          row: ({ disk, ssh, labels, image, id }) => [
            sizeCell(disk.dirty_bytes),
            numberCell(disk.generation),
            `${ssh.host}:${ssh.port}`,
            labelsText(labels) || '-',
            image,
            id,
          ],
        },
        quiet: ({ name }) => name,
        empty: state || label ? 'No instances match.' : 'No instances yet. Create one: berth create NAME',
      });
      return undefined;
    },
  },
  {
    name: 'instance create',
    short: ['create'],
    args: ['NAME'],
    summary: 'create an instance',
    details: DEFAULTS,
    example: 'berth create web --cpus 2 --memory 1g --start',
    options: {
      ...SETTINGS,
      ...USER_DATA,
      image: { type: 'string', value: 'IMAGE', help: 'the image; default: debian-12' },
      start: { type: 'boolean', help: 'start its VM, and wait until SSH works' },
    },
    run: create,
  },
  {
    name: 'instance show',
    short: ['show'],
    args: ['NAME'],
    names_instances: true,
    summary: 'show an instance, its VM and its disk',
    example: 'berth show web',
    run: async (call) => {
      return show(call, await call.session.berth().instances.find(call.args[0] ?? ''));
    },
  },
  {
    name: 'instance set',
    short: ['set'],
    args: ['NAME'],
    names_instances: true,
    summary: 'change an instance',
    details: 'A disk grows while its VM runs. For other sizes a running VM is stopped, and started again.',
    example: 'berth set web --memory 2g --auto-flush 30s',
    options: {
      ...SETTINGS,
      label: { ...SETTINGS['label'], help: 'a label; replaces all labels; repeatable' } as Option,
      'no-labels': { type: 'boolean', help: 'remove all labels' },
      name: { type: 'string', value: 'NAME', help: 'a new name' },
      ...YES,
    },
    run: async (call) => {
      const berth = call.session.berth();
      const named = call.options.text('name');
      const name = named === undefined ? undefined : instanceName(named);
      if (call.options.flag('no-labels') && call.options.list('label') !== undefined)
        throw new UsageError('--label and --no-labels exclude each other');
      const unlabelled = call.options.flag('no-labels') ? { labels: {} } : {};
      const body = { ...settingsOf(call), name, ...unlabelled };
      const instance = await berth.instances.find(call.args[0] ?? '');
      const change = () => berth.instances.change(instance.id, body);
      const resizes = Object.values(sizesOf(call)).some((size) => size !== undefined);
      if (Object.values(body).every((each) => each === undefined))
        throw new UsageError(`nothing to change: give an option, such as --memory 2g`);
      if (!resizes) return show(call, await change());
      const { result, runs_again } = await whileStopped(call, berth, instance, {
        doing: 'resize it',
        work: change,
      });
      const now = runs_again ? await berth.instances.get(instance.id) : result;
      await show(call, now);
      if (now.disk_gib !== instance.disk_gib && now.disk.growth === 'done')
        call.terminal.say(growthWords(now));
      return undefined;
    },
  },
  {
    name: 'instance rm',
    short: ['rm'],
    args: ['NAME…'],
    names_instances: true,
    summary: 'delete instances with their disks',
    example: 'berth rm web',
    options: { ...YES, ...NO_WAIT },
    run: remove,
  },
];
