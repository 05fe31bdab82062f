/** Commands on VMs. */
import type { Berth, Instance, Vm } from '../../../client/src/berth.ts';
import { type Call, type Command, NO_WAIT } from '../command.ts';
import { bytes, duration } from '../format.ts';
import { waitFor, watched } from '../waiting.ts';

interface Move {
  readonly doing: string;
  readonly done: string;
  readonly to: 'running' | 'stopped' | 'suspended';
  readonly begin: (berth: Berth, id: string, call: Call) => Promise<Vm>;
}

/** Requests all, then waits for each. */
async function move(call: Call, { doing, done, to, begin }: Move): Promise<undefined> {
  const { args, options, session, terminal } = call;
  const berth = session.berth();
  const found: Instance[] = await Promise.all(args.map((each) => berth.instances.find(each)));
  const vms: Vm[] = [];
  for (const { id } of found) vms.push(await begin(berth, id, call));
  const began = performance.now();
  for (const [at, instance] of found.entries()) {
    if (!options.flag('no-wait')) {
      vms[at] = await waitFor(call, berth, instance, to, doing);
      const took = duration(performance.now() - began);
      const how = vms[at]?.state === 'stopped' && isRecovered(vms[at]) ? 'is stopped' : done;
      terminal.say(`${instance.name} ${how} (${took})${ending(instance, vms[at])}`);
    } else terminal.say(`${instance.name}: ${vms[at]?.state}`);
  }
  if (terminal.format === 'json') terminal.json(vms.length === 1 ? vms[0] : vms);
}

/** The VM was recovered: writes are lost. */
function isRecovered(vm: Vm | undefined): boolean {
  return ['recovered', 'cold_boot'].includes(vm?.reason?.code ?? '');
}

function ending({ name }: Instance, vm: Vm | undefined): string {
  if (isRecovered(vm)) return `\n${vm?.reason?.message}`;
  return vm?.state === 'running' ? `. Log in: berth ssh ${name}` : '';
}

async function flush({ args, session, terminal, signal, options }: Call): Promise<undefined> {
  const berth = session.berth();
  const { id, name } = await berth.instances.find(args[0] ?? '');
  const look = `berth show ${name}`;
  const receipt = await watched(
    { signal, terminal },
    `flushing ${name}`,
    'the server goes on flushing',
    look,
    () => berth.instances.flushVm(id, { signal }),
  );
  const { generation, dirty_bytes, uploaded_bytes, duration_ms, consistency } = receipt;
  if (options.flag('quiet')) return void terminal.write(`${generation}\n`);
  const what =
    dirty_bytes === 0
      ? `nothing new; generation ${generation} is durable`
      : `generation ${generation} is durable: ${bytes(dirty_bytes)} saved as ${bytes(uploaded_bytes)} in ${duration(duration_ms)}, consistency ${consistency}`;
  terminal.done(`${name}: ${what}`, receipt);
}

export const VM_COMMANDS: readonly Command[] = [
  {
    name: 'vm start',
    short: ['start'],
    args: ['NAME…'],
    names_instances: true,
    summary: 'start VMs, and wait until SSH works',
    example: 'berth start web',
    options: NO_WAIT,
    run: (call) =>
      move(call, {
        doing: 'starting',
        done: 'runs',
        to: 'running',
        begin: (berth, id) => berth.instances.startVm(id),
      }),
  },
  {
    name: 'vm stop',
    short: ['stop'],
    args: ['NAME…'],
    names_instances: true,
    summary: 'shut VMs down, and wait until all their writes are saved',
    example: 'berth stop web',
    options: {
      force: {
        type: 'boolean',
        short: 'f',
        help: 'do not shut the guest down; its completed writes are saved',
      },
      ...NO_WAIT,
    },
    run: (call) =>
      move(call, {
        doing: 'stopping',
        done: 'is stopped; all is saved',
        to: 'stopped',
        begin: (berth, id) => berth.instances.stopVm(id, { force: call.options.flag('force') }),
      }),
  },
  {
    name: 'vm restart',
    short: ['restart'],
    args: ['NAME…'],
    names_instances: true,
    summary: 'reboot guests',
    example: 'berth restart web',
    options: NO_WAIT,
    run: (call) =>
      move(call, {
        doing: 'restarting',
        done: 'runs again',
        to: 'running',
        begin: (berth, id) => berth.instances.restartVm(id),
      }),
  },
  {
    name: 'vm suspend',
    short: ['suspend'],
    args: ['NAME…'],
    names_instances: true,
    summary: 'save the memory and disk of VMs, and end them; start resumes from there',
    example: 'berth suspend web',
    options: NO_WAIT,
    run: (call) =>
      move(call, {
        doing: 'suspending',
        done: 'is suspended; memory and disk are saved',
        to: 'suspended',
        begin: (berth, id) => berth.instances.suspendVm(id),
      }),
  },
  {
    name: 'vm flush',
    short: ['flush'],
    args: ['NAME'],
    names_instances: true,
    summary: 'make the writes of the guest durable, and print the receipt; after Ctrl-C the server continues',
    example: 'berth flush web',
    run: flush,
  },
];
