/** Tools for instances and their VMs. */
import { Type } from 'typebox';
import type { Instance } from '../../client/src/berth.ts';
import { durationText } from '../../client/src/durations.ts';
import { ADDS, CURSOR, DESTROYS, fields, INSTANCE, LIMIT, READS, SETS, type Tool, tool } from './tool.ts';
import { startAndTell, startNew, waitForVm } from './wait-for-vm.ts';

const STATES = [
  'starting',
  'running',
  'restarting',
  'suspending',
  'suspended',
  'stopping',
  'stopped',
  'failed',
] as const;
export const NEW_NAME = Type.String({
  minLength: 1,
  maxLength: 63,
  description: 'Lower-case letters, digits and hyphens; new in the organisation',
});

function lineOf({ name, vm, cpus, memory_mib, disk_gib, image, labels }: Instance): string {
  const pairs = Object.entries(labels).map(([key, value]) => `${key}=${value}`);
  return [name, vm.state, `${cpus} CPU, ${memory_mib} MiB, ${disk_gib} GiB`, image, ...pairs].join('  ');
}

export function pageText(lines: readonly string[], next_cursor: string | null, none: string): string {
  if (lines.length === 0) return none;
  const more = next_cursor === null ? [] : [`More: the same with cursor ${next_cursor}`];
  return [...lines, ...more].join('\n');
}

function settingsOf({ idle_timeout_seconds, wake_on_connect, auto_flush_seconds, egress }: Instance): string {
  const allowed = egress.mode === 'allow' ? ` ${egress.allow.join(' ')}` : '';
  return [
    idle_timeout_seconds === null
      ? 'no idle stop'
      : `stops when idle for ${durationText(idle_timeout_seconds)}`,
    ...(wake_on_connect ? ['wakes on connect'] : []),
    auto_flush_seconds === null ? 'no automatic flush' : `flushes every ${durationText(auto_flush_seconds)}`,
    `egress ${egress.mode}${allowed}`,
  ].join('; ');
}

function describe(instance: Instance): string {
  const { id, name, vm, disk, ssh, forked_from, cpus, memory_mib, disk_gib, image, labels } = instance;
  const reason = vm.reason === null ? '' : `: ${vm.reason.message} (${vm.reason.code})`;
  const saved =
    disk.durable_at === null
      ? 'nothing is durable yet'
      : `generation ${disk.generation}, durable at ${disk.durable_at}`;
  return [
    `${name} (${id}): ${instance.deleting ? 'deleting' : vm.state}${reason}`,
    `size: ${cpus} CPU, ${memory_mib} MiB, ${disk_gib} GiB; image ${image}`,
    `disk: ${saved}; ${disk.dirty_bytes} bytes written since`,
    `ssh: ${ssh.host} port ${ssh.port}`,
    `settings: ${settingsOf(instance)}`,
    ...Object.entries(labels).map(([key, value]) => `label: ${key}=${value}`),
    ...(forked_from === null
      ? []
      : [`forked from ${forked_from.instance_id}, generation ${forked_from.generation}`]),
  ].join('\n');
}

const LIST = tool({
  name: 'list_instances',
  title: 'List instances',
  description: 'Lists the instances of the organisation, one a line, newest first.',
  input: fields({
    state: Type.Optional(Type.Enum([...STATES])),
    label: Type.Optional(Type.String({ maxLength: 200, description: '`key` or `key=value`' })),
    limit: LIMIT,
    cursor: CURSOR,
  }),
  hints: READS,
  run: async ({ berth, args, signal }) => {
    const { label, ...others } = args;
    const query = label === undefined ? others : { ...others, label: [label] };
    const { data, next_cursor } = await berth.call('listInstances', { query }, { signal });
    return { text: pageText(data.map(lineOf), next_cursor, 'There are no such instances.') };
  },
});

const GET = tool({
  name: 'get_instance',
  title: 'Show an instance',
  description: 'Shows an instance: the state of its VM and why, size, saved disk, SSH address, settings.',
  input: fields({ instance: INSTANCE }),
  hints: READS,
  run: async ({ berth, args, signal }) => ({
    text: describe(await berth.instances.find(args.instance, { signal })),
  }),
});

const CREATE = tool({
  name: 'create_instance',
  title: 'Create an instance',
  description:
    'Creates a Linux machine and starts it. Its disk, name and SSH address stay until it is deleted; its VM may come and go.',
  input: fields({
    name: NEW_NAME,
    image: Type.Optional(Type.String({ maxLength: 63, description: 'Default: debian-12' })),
    cpus: Type.Optional(Type.Integer({ minimum: 1, maximum: 16 })),
    memory_mib: Type.Optional(Type.Integer({ minimum: 128, maximum: 65_536 })),
    disk_gib: Type.Optional(Type.Integer({ minimum: 1, maximum: 1024 })),
    labels: Type.Optional(Type.Record(Type.String(), Type.String(), { maxProperties: 64 })),
    idle_timeout_seconds: Type.Optional(
      Type.Integer({
        minimum: 60,
        maximum: 2_592_000,
        description: 'Stop the VM after this time without use; default: never',
      }),
    ),
    start: Type.Optional(Type.Boolean({ default: true })),
  }),
  hints: ADDS,
  run: async ({ berth, args: { start = true, ...body }, signal }) => {
    const made = await berth.instances.create(body, { signal });
    if (!start) return { text: `Created ${made.name}, stopped.` };
    return { text: `Created ${made.name}. ${await startNew(berth, made, signal)}` };
  },
});

const START = tool({
  name: 'start_instance',
  title: 'Start an instance',
  description:
    'Starts the VM of an instance, or resumes it, and waits until it accepts commands. Safe to repeat.',
  input: fields({ instance: INSTANCE }),
  hints: SETS,
  run: async ({ berth, args, signal }) => {
    const found = await berth.instances.find(args.instance, { signal });
    return { text: await startAndTell(berth, found, signal) };
  },
});

const SUSPEND = tool({
  name: 'suspend_instance',
  title: 'Suspend an instance',
  description:
    'Saves memory and disk and ends the VM. start_instance continues where it was, with its processes. Connections break.',
  input: fields({ instance: INSTANCE }),
  hints: SETS,
  run: async ({ berth, args, signal }) => {
    const found = await berth.instances.find(args.instance, { signal });
    if (found.vm.state === 'suspended') return { text: `${found.name} is suspended.` };
    if (found.vm.state !== 'suspending') await berth.instances.suspendVm(found.id, { signal });
    const { vm, reached } = await waitForVm(berth, found, 'suspended', signal);
    if (reached) return { text: `${found.name} is suspended; memory and disk are saved.` };
    return { text: `${found.name} is still ${vm.state}. Call suspend_instance again to go on waiting.` };
  },
});

const STOP = tool({
  name: 'stop_instance',
  title: 'Stop an instance',
  description:
    'Shuts the guest down, saves its disk and ends the VM. Lost: running processes, memory, files in /run and /dev/shm. Kept: everything on the disk. suspend_instance keeps processes too.',
  input: fields({
    instance: INSTANCE,
    force: Type.Optional(
      Type.Boolean({
        default: false,
        description: 'Halt without a shutdown: also lost is what programs have not written to the disk',
      }),
    ),
  }),
  hints: DESTROYS,
  run: async ({ berth, args, signal }) => {
    const found = await berth.instances.find(args.instance, { signal });
    await berth.instances.stopVm(found.id, { force: args.force ?? false, signal });
    const { vm, reached } = await waitForVm(berth, found, 'stopped', signal);
    if (reached) return { text: `${found.name} is stopped; generation ${vm.disk.generation} has its disk.` };
    const why = vm.reason === null ? '' : ` (${vm.reason.message})`;
    return { text: `${found.name} is still ${vm.state}${why}. Call stop_instance again to go on waiting.` };
  },
});

const DELETE = tool({
  name: 'delete_instance',
  title: 'Delete an instance',
  description:
    'Deletes an instance for good. Lost: its disk with all generations, its memory, its SSH address, its URLs and secrets. Nothing brings them back; only forks stay.',
  input: fields({ instance: INSTANCE }),
  hints: DESTROYS,
  run: async ({ berth, args, signal }) => {
    const { id, name } = await berth.instances.find(args.instance, { signal });
    await berth.instances.delete(id, { signal });
    return { text: `${name} is being deleted. Its name is free once list_instances no longer shows it.` };
  },
});

export const INSTANCE_TOOLS: readonly Tool[] = [LIST, GET, CREATE, START, SUSPEND, STOP, DELETE];
