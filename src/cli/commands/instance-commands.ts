/** Commands on instances. */
import type { Instance } from '../../../client/src/berth.ts';
import { type Call, type Command, NO_WAIT } from '../command.ts';
import { CommandError } from '../command-error.ts';
import { STATES } from '../complete-values.ts';
import { ago, bytes, plural } from '../format.ts';
import { instanceName } from '../numbers.ts';
import { collect } from '../reading.ts';
import { waitFor, watched } from '../waiting.ts';
import { whileStopped } from '../while-stopped.ts';
import { DEFAULTS, SETTINGS, settingsOf, sizesOf, USER_DATA, userDataOf } from './instance-settings.ts';

export const stateOf = ({ deleting, vm }: Instance) => (deleting ? 'deleting' : vm.state);

/** For a failed VM the server knows only an upper bound. */
function toSave({ disk, vm }: Instance): string {
  const bound = vm.state === 'failed' && disk.dirty_bytes > 0 ? 'at most ' : '';
  return `${bound}${bytes(disk.dirty_bytes)} to save`;
}

function saved(instance: Instance): string {
  const { disk } = instance;
  if (disk.dirty_bytes > 0) return toSave(instance);
  return disk.durable_at === null ? 'nothing yet' : ago(disk.durable_at);
}

function bootOf({ boot, started_at }: Instance['vm']): string {
  if (boot === 0) return 'never started';
  return `${boot}, ${started_at === null ? 'not up yet' : ago(started_at)}`;
}

function rowsOf(instance: Instance): [string, string][] {
  const { vm, disk } = instance;
  const { last, daily_days } = instance.generations_keep;
  const settings = Object.entries(instance.labels).map(([key, value]) => `${key}=${value}`);
  return [
    ['name', instance.name],
    ['id', instance.id],
    ['state', stateOf(instance)],
    ...(vm.reason === null ? [] : ([['', `${vm.reason.message} (${vm.reason.code})`]] as [string, string][])),
    ['boot', bootOf(vm)],
    [
      'size',
      `${instance.cpus} cpu, ${bytes(instance.memory_mib * 2 ** 20)} memory, ${instance.disk_gib} GiB disk`,
    ],
    ['image', instance.image],
    ['disk', `generation ${disk.generation}, ${bytes(disk.stored_bytes)} stored, ${toSave(instance)}`],
    ['durable', ago(disk.durable_at)],
    ['auto-flush', instance.auto_flush_seconds === null ? 'off' : `every ${instance.auto_flush_seconds} s`],
    [
      'idle',
      instance.idle_timeout_seconds === null ? 'runs on' : `stops after ${instance.idle_timeout_seconds} s`,
    ],
    ['wake', instance.wake_on_connect ? 'a connection starts it' : 'off'],
    ['keeps', `the last ${plural(last, 'generation')}, then one a day for ${plural(daily_days, 'day')}`],
    ['labels', settings.join(' ') || '-'],
    ['created', instance.created_at],
  ];
}

function show({ terminal }: Pick<Call, 'terminal'>, instance: Instance): void {
  terminal.one(instance, { rows: rowsOf, quiet: ({ id }) => id });
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
  if (!options.flag('yes')) {
    if (!terminal.interactive) {
      throw new CommandError(`this deletes ${names} with everything on the disk`, {
        next: `berth rm --yes ${args.join(' ')}`,
        exit_code: 2,
      });
    }
    const answer = await terminal.ask(`Delete ${names} with everything on the disk? (yes/no)`, 'no');
    if (!/^y(es)?$/i.test(answer)) throw new CommandError('nothing was deleted');
  }
  for (const { id } of found) await berth.instances.delete(id);
  for (const { id, name } of options.flag('no-wait') ? [] : found) {
    await watched(call, `deleting ${name}`, `the server goes on deleting ${name}`, 'berth ls', (onVm) =>
      berth.instances.waitUntilDeleted(id, { signal, onVm }),
    );
  }
  terminal.done(options.flag('no-wait') ? `${names}: deleting` : `${names}: deleted`, {
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
      label: { type: 'string', value: 'KEY=VALUE', help: 'only instances with this label' },
    },
    run: async ({ session, options, terminal }) => {
      const [state, label] = [options.text('state') as Instance['vm']['state'], options.text('label')];
      const instances = await collect(session.berth().instances.list({ state, label, limit: 200 }));
      terminal.list(instances, {
        headings: ['NAME', 'STATE', 'CPUS', 'MEMORY', 'DISK', 'SAVED', 'CREATED'],
        row: (each) => [
          each.name,
          stateOf(each),
          String(each.cpus),
          bytes(each.memory_mib * 2 ** 20),
          `${each.disk_gib} GiB`,
          saved(each),
          ago(each.created_at),
        ],
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
      show(call, await call.session.berth().instances.find(call.args[0] ?? ''));
      return undefined;
    },
  },
  {
    name: 'instance set',
    short: ['set'],
    args: ['NAME'],
    names_instances: true,
    summary: 'change an instance; its size while it is stopped',
    example: 'berth set web --memory 2g --auto-flush 30s',
    options: { ...SETTINGS, name: { type: 'string', value: 'NAME', help: 'a new name' } },
    run: async (call) => {
      const berth = call.session.berth();
      const named = call.options.text('name');
      const name = named === undefined ? undefined : instanceName(named);
      const body = { ...settingsOf(call), name };
      const instance = await berth.instances.find(call.args[0] ?? '');
      const change = () => berth.instances.change(instance.id, body);
      const resizes = Object.values(sizesOf(call)).some((size) => size !== undefined);
      show(call, await (resizes ? whileStopped(berth, instance, change) : change()));
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
    options: { yes: { type: 'boolean', short: 'y', help: 'do not ask' }, ...NO_WAIT },
    run: remove,
  },
];
