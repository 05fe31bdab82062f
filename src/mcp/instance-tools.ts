/**
 * The MCP tools for instances and their VMs, for the generations of their disks, and for their published HTTP ports.
 */
import { Type } from 'typebox';
import type { Generation, Instance, Port } from '../../client/src/berth.ts';
import { durationText } from '../../client/src/words.ts';
import {
  ADDS,
  CURSOR,
  DESTROYS,
  INSTANCE,
  LIMIT,
  PATIENCE_MS,
  READS,
  SETS,
  startAndTell,
  startNew,
  type Tool,
  tool,
  toolInput,
  waitForVm,
} from './tool.ts';

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
const NEW_NAME = Type.String({
  minLength: 1,
  maxLength: 63,
  description: 'Lower-case letters, digits and hyphens; new in the organisation',
});

function instanceLine({ name, vm, cpus, memory_mib, disk_gib, image, labels }: Instance): string {
  const pairs = Object.entries(labels).map(([key, value]) => `${key}=${value}`);
  return [name, vm.state, `${cpus} CPU, ${memory_mib} MiB, ${disk_gib} GiB`, image, ...pairs].join('  ');
}

function pageText(lines: readonly string[], next_cursor: string | null, none: string): string {
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

const LIST_INSTANCES = tool({
  name: 'list_instances',
  title: 'List instances',
  description: 'Lists the instances of the organisation, one a line, newest first.',
  input: toolInput({
    state: Type.Optional(Type.Enum([...STATES])),
    label: Type.Optional(Type.String({ maxLength: 200, description: '`key` or `key=value`' })),
    limit: LIMIT,
    cursor: CURSOR,
  }),
  hints: READS,
  needs: '',
  run: async ({ berth, args, signal }) => {
    const { label, ...others } = args;
    const query = label === undefined ? others : { ...others, label: [label] };
    const { data, next_cursor } = await berth.call('listInstances', { query }, { signal });
    return { text: pageText(data.map(instanceLine), next_cursor, 'There are no such instances.') };
  },
});

const GET = tool({
  name: 'get_instance',
  title: 'Show an instance',
  description: 'Shows an instance: the state of its VM and why, size, saved disk, SSH address, settings.',
  input: toolInput({ instance: INSTANCE }),
  hints: READS,
  needs: '',
  run: async ({ berth, args, signal }) => ({
    text: describe(await berth.instances.find(args.instance, { signal })),
  }),
});

const CREATE = tool({
  name: 'create_instance',
  title: 'Create an instance',
  description:
    'Creates a Linux machine and starts it. Its disk, name and SSH address stay until it is deleted; its VM may come and go.',
  input: toolInput({
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
  needs: 'instances:write; to start it vm:write, vm:read',
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
  input: toolInput({ instance: INSTANCE }),
  hints: SETS,
  needs: 'vm:write, vm:read',
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
  input: toolInput({ instance: INSTANCE }),
  hints: SETS,
  needs: 'vm:write, vm:read',
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
  input: toolInput({
    instance: INSTANCE,
    force: Type.Optional(
      Type.Boolean({
        default: false,
        description: 'Halt without a shutdown: also lost is what programs have not written to the disk',
      }),
    ),
  }),
  hints: DESTROYS,
  needs: 'vm:write, vm:read',
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
  input: toolInput({ instance: INSTANCE }),
  hints: DESTROYS,
  needs: 'instances:write',
  run: async ({ berth, args, signal }) => {
    const { id, name } = await berth.instances.find(args.instance, { signal });
    await berth.instances.delete(id, { signal });
    return { text: `${name} is being deleted. Its name is free once list_instances no longer shows it.` };
  },
});

export const INSTANCE_TOOLS: readonly Tool[] = [LIST_INSTANCES, GET, CREATE, START, SUSPEND, STOP, DELETE];

const NUMBER = Type.Integer({
  minimum: 0,
  maximum: Number.MAX_SAFE_INTEGER,
  description: 'From list_generations or flush',
});

function generationLine({ generation, created_at, trigger, name, pinned, bytes }: Generation): string {
  const marks = [...(name === null ? [] : [`“${name}”`]), ...(pinned ? ['pinned'] : [])];
  return [generation, created_at, trigger, `${bytes} bytes`, ...marks].join('  ');
}

const FLUSH = tool({
  name: 'flush',
  title: 'Save the disk',
  description:
    'Makes everything that the guest has written so far durable, as a new generation, while it runs. Memory and processes are not part of it.',
  input: toolInput({ instance: INSTANCE }),
  hints: SETS,
  needs: 'vm:write',
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

const LIST_GENERATIONS = tool({
  name: 'list_generations',
  title: 'List saved states of a disk',
  description:
    'Lists the generations of an instance, newest first: number, time, what made it, bytes that were new, name.',
  input: toolInput({ instance: INSTANCE, limit: LIMIT, cursor: CURSOR }),
  hints: READS,
  needs: '',
  run: async ({ berth, args: { instance, ...query }, signal }) => {
    const { id } = await berth.instances.find(instance, { signal });
    const { data, next_cursor } = await berth.call('listGenerations', { path: { id }, query }, { signal });
    return {
      text: pageText(data.map(generationLine), next_cursor, 'There are no generations yet; flush makes one.'),
    };
  },
});

const FORK = tool({
  name: 'fork_instance',
  title: 'Fork an instance',
  description:
    'Creates a new instance with the disk of another, as of its newest generation or a given one, and starts it. The other one runs on and is not changed. What it has not flushed is not in the fork: flush first.',
  input: toolInput({
    instance: INSTANCE,
    name: NEW_NAME,
    generation: Type.Optional(NUMBER),
    start: Type.Optional(Type.Boolean({ default: true })),
  }),
  hints: ADDS,
  needs: 'instances:write; to start it vm:write, vm:read',
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
  input: toolInput({ instance: INSTANCE, generation: NUMBER }),
  hints: { ...DESTROYS, idempotentHint: false },
  needs: 'instances:write',
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

export const GENERATION_TOOLS: readonly Tool[] = [FLUSH, LIST_GENERATIONS, FORK, RESTORE];

const portLine = ({ id, port, access, url, hostnames }: Port): string =>
  [port, access, url, ...hostnames.map(({ hostname, status }) => `${hostname} (${status})`), id].join('  ');

const LIST_PORTS = tool({
  name: 'list_ports',
  title: 'List published ports',
  description: 'Lists the HTTP ports of an instance: port in the guest, access, URL, id.',
  input: toolInput({ instance: INSTANCE, limit: LIMIT, cursor: CURSOR }),
  hints: READS,
  needs: 'vm:read',
  run: async ({ berth, args: { instance, ...query }, signal }) => {
    const { id, name } = await berth.instances.find(instance, { signal });
    const { data, next_cursor } = await berth.call('listPorts', { path: { id }, query }, { signal });
    return { text: pageText(data.map(portLine), next_cursor, `${name} publishes no ports.`) };
  },
});

const PUBLISH = tool({
  name: 'publish_port',
  title: 'Publish a port',
  description:
    'Gives an HTTP port of the guest a URL. The program must listen on all addresses (0.0.0.0). private: only with a Berth credential, or from the console. public: anybody who can reach Berth; ask the user first.',
  input: toolInput({
    instance: INSTANCE,
    port: Type.Integer({ minimum: 1, maximum: 65_535 }),
    access: Type.Optional(Type.Enum(['private', 'public'], { default: 'private' })),
  }),
  hints: { ...ADDS, openWorldHint: true },
  needs: 'vm:write',
  run: async ({ berth, args: { instance, ...body }, signal }) => {
    const { id, name } = await berth.instances.find(instance, { signal });
    const { url, access, port, id: port_id } = await berth.instances.createPort(id, body, { signal });
    return { text: `Port ${port} of ${name} is ${access} at ${url} (${port_id}).` };
  },
});

const UNPUBLISH = tool({
  name: 'unpublish_port',
  title: 'Withdraw a port',
  description:
    'Withdraws a published port. Lost: its URL and its custom hostnames; the generated hostname never comes back. Open connections end.',
  input: toolInput({
    instance: INSTANCE,
    port_id: Type.String({ minLength: 1, maxLength: 64, description: 'From list_ports: `port_…`' }),
  }),
  hints: DESTROYS,
  needs: 'vm:write',
  run: async ({ berth, args: { instance, port_id }, signal }) => {
    const { id } = await berth.instances.find(instance, { signal });
    await berth.call('deletePort', { path: { id, port_id } }, { signal });
    return { text: `${port_id} is withdrawn.` };
  },
});

export const PORT_TOOLS: readonly Tool[] = [LIST_PORTS, PUBLISH, UNPUBLISH];
