/**
 * The commands on instances: list, create, show, change, rename and delete. Also `berth egress`, which shows and
 * changes what an instance may reach, and the list of images.
 */
import type { Berth, EgressMode, Instance } from '../../../client/src/berth.ts';
import { type Call, type Command, INSTANCE, INSTANCES, NO_WAIT, type Option } from '../command.ts';
import { CommandError, EXIT, UsageError } from '../command-error.ts';
import { changeCurrent, collect } from '../reading.ts';
import { parentName } from '../session.ts';
import { cell, numberCell, sizeCell, timeCell } from '../table.ts';
import { instanceName, STATES } from '../values.ts';
import { egressWords, growthWords, labelsText, rowsOf, savedState, stateOf } from './instance-view.ts';

const GIB = 2 ** 30;

import { destinationText, entryFor, isListed } from '../../../client/src/egress-entries.ts';
import { confirm, YES } from '../terminal.ts';
import { waitFor, watched, whileStopped } from '../waiting.ts';
import {
  DEFAULTS,
  SETTING_OPTIONS,
  settingsOf,
  sizesOf,
  USER_DATA,
  userDataOf,
} from './instance-settings.ts';

async function showInstance({ terminal, session }: Call, instance: Instance): Promise<undefined> {
  const { forked_from } = instance;
  const named = forked_from !== null && terminal.format === 'human';
  const parent = named ? await parentName(session.berth(), forked_from.instance_id) : '';
  terminal.one(instance, { rows: (each) => rowsOf(each, parent), quiet: ({ id }) => id });
}

async function createInstance(call: Call): Promise<undefined> {
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

async function removeInstances(call: Call): Promise<undefined> {
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

/** `berth rename`: what `berth set NAME --name NEW-NAME` does, as its own verb. */
const RENAME: Command = {
  name: 'instance rename',
  short: ['rename'],
  args: ['NAME', 'NEW-NAME'],
  fields: { name: 'NEW-NAME' },
  names_instances: true,
  summary: 'give an instance a new name',
  example: 'berth rename web www',
  run: async ({ args, session, terminal }) => {
    const new_name = instanceName(args[1] ?? '');
    const berth = session.berth();
    const { id, name } = await berth.instances.find(args[0] ?? '');
    if (name === new_name) {
      const same = await berth.instances.get(id);
      return void terminal.done(`${name} is its name already: nothing changed.`, same, id);
    }
    const renamed = await berth.instances.change(id, { name: new_name });
    terminal.done(`Renamed ${name} to ${new_name}.`, renamed, id);
    return undefined;
  },
};

const MODES: readonly EgressMode[] = ['open', 'deny', 'allow'];

async function showEgress(
  { terminal }: Call,
  berth: Berth,
  { id, name, egress }: Instance,
): Promise<undefined> {
  const denied = await collect(berth.list('listDeniedEgress', { path: { id } }));
  if (terminal.format === 'json') return void terminal.json({ egress, denied });
  terminal.say(`Egress of ${name} is ${egressWords(egress)}`);
  terminal.list(denied, {
    headings: ['DENIED', 'ADDRESS', 'ATTEMPTS', 'LAST'],
    row: (each) => [
      destinationText(each),
      each.address ?? '-',
      { text: String(each.count), value: each.count },
      timeCell(each.at),
    ],
    quiet: destinationText,
    empty: 'Nothing was denied.',
  });
  // A name at a private address stays closed, so what the list has already is not offered again.
  const wanted = denied.find((each) => each.name !== undefined && !isListed(egress.allow, each));
  if (wanted !== undefined && egress.mode !== 'open')
    terminal.say(`To allow one: berth egress ${name} allow ${entryFor(wanted)}`);
}

async function egress(call: Call): Promise<undefined> {
  const [text = '', action, ...hosts] = call.args;
  const berth = call.session.berth();
  const found = await berth.instances.find(text);
  if (action === undefined) return showEgress(call, berth, found);
  if (action !== 'allow' && action !== 'remove') {
    const mode = MODES.find((each) => each === action);
    const hint = mode === undefined ? '' : `. To change the mode: berth set ${found.name} --egress ${mode}`;
    throw new UsageError(`after NAME comes allow or remove, not ${action}${hint}`);
  }
  if (hosts.length === 0) throw new UsageError(`HOST is missing: what to ${action}`);
  const now = await changeCurrent(
    berth,
    'getInstance',
    { path: { id: found.id } },
    ({ name, egress: { allow } }, if_match) => {
      const next = action === 'allow' ? [...allow, ...hosts] : without(name, allow, hosts);
      return berth.instances.change(found.id, { egress: { allow: next } }, { if_match });
    },
  );
  const said = hosts.join(', ');
  const sentence =
    action === 'allow' ? allowed(now, said) : `Removed ${said} from what ${now.name} may reach.`;
  call.terminal.done(sentence, now, now.id);
}

function allowed({ name, egress: { mode } }: Instance, said: string): string {
  if (mode === 'allow') return `Allowed ${said} for ${name}.`;
  return `Allowed ${said} for ${name}; the egress mode is ${mode}, so the list does not apply yet. To apply it: berth set ${name} --egress allow`;
}

/** @throws CommandError for a host that is not on the list */
function without(name: string, allow: readonly string[], hosts: readonly string[]): string[] {
  const absent = hosts.filter((host) => !allow.includes(host.toLowerCase()));
  if (absent.length > 0) {
    const text = `${absent.join(', ')} is not on the list of ${name}`;
    throw new CommandError(text, { next: `berth egress ${name}`, exit_code: EXIT.not_found });
  }
  const gone = new Set(hosts.map((host) => host.toLowerCase()));
  return allow.filter((each) => !gone.has(each));
}

const EGRESS: Command = {
  name: 'instance egress',
  short: ['egress'],
  args: ['NAME', '[allow|remove]', '[HOST…]'],
  fields: { 'egress.allow': 'HOST' },
  names_instances: true,
  summary: 'show what an instance may reach and what it was denied; allow or remove a host',
  details:
    'HOST is a name (example.com, *.example.com), an address or a network, with an optional :port. The list applies in the mode allow: berth set NAME --egress allow. Private addresses are closed in every mode.',
  example: 'berth egress web allow api.example.com',
  lists: true,
  run: egress,
};

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
      ...SETTING_OPTIONS,
      ...USER_DATA,
      image: { type: 'string', value: 'IMAGE', help: 'the image; default: debian-12' },
      start: { type: 'boolean', help: 'start its VM, and wait until SSH works' },
    },
    run: createInstance,
  },
  {
    name: 'instance show',
    short: ['show'],
    ...INSTANCE,
    summary: 'show an instance, its VM and its disk',
    example: 'berth show web',
    run: async (call) => {
      return showInstance(call, await call.session.berth().instances.find(call.args[0] ?? ''));
    },
  },
  {
    name: 'instance set',
    short: ['set'],
    ...INSTANCE,
    summary: 'change an instance',
    details: 'A disk grows while its VM runs. For other sizes a running VM is stopped, and started again.',
    example: 'berth set web --memory 2g --auto-flush 30s',
    options: {
      ...SETTING_OPTIONS,
      label: { ...SETTING_OPTIONS['label'], help: 'a label; replaces all labels; repeatable' } as Option,
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
      if (!resizes) return showInstance(call, await change());
      const { result, runs_again } = await whileStopped(call, berth, instance, {
        doing: 'resize it',
        work: change,
      });
      const now = runs_again ? await berth.instances.get(instance.id) : result;
      await showInstance(call, now);
      if (now.disk_gib !== instance.disk_gib && now.disk.growth === 'done')
        call.terminal.say(growthWords(now));
    },
  },
  {
    name: 'instance rm',
    short: ['rm'],
    ...INSTANCES,
    summary: 'delete instances with their disks',
    example: 'berth rm web',
    options: { ...YES, ...NO_WAIT },
    run: removeInstances,
  },
  RENAME,
  EGRESS,
  {
    name: 'image ls',
    short: ['images'],
    summary: 'list the images that instances can use',
    example: 'berth image ls',
    run: async ({ session, terminal }) => {
      const { data } = await session.berth().call('listImages', {});
      terminal.list(data, {
        headings: ['IMAGE', 'CURRENT', 'SMALLEST DISK', 'VERSIONS'],
        row: ({ id, current, size_bytes, versions }) => [
          id,
          cell(current?.slice(0, 12) ?? '-', current),
          cell(
            size_bytes === null ? '-' : `${Math.ceil(size_bytes / GIB)} GiB`,
            size_bytes && GIB * Math.ceil(size_bytes / GIB),
          ),
          cell(versions.map((each) => each.slice(0, 12)).join(' '), versions.join(' ')),
        ],
        quiet: ({ id }) => id,
        empty: 'No host has an image yet.',
      });
    },
  },
];
