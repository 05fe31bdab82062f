/** Commands on VMs. */
import { type Berth, BerthError, type Instance, type Vm } from '../../../client/src/berth.ts';
import { type Call, type Command, NO_WAIT } from '../command.ts';
import { InstanceError } from '../command-error.ts';
import { duration } from '../format.ts';
import { waitFor } from '../waiting.ts';
import { FLUSH } from './flush-command.ts';

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
  for (const { id, name } of found) {
    vms.push(
      await begin(berth, id, call).catch((cause: unknown) => {
        throw new InstanceError(name, cause);
      }),
    );
  }
  const began = performance.now();
  for (const [at, instance] of found.entries()) {
    if (!options.flag('no-wait')) {
      vms[at] = await waitFor(call, berth, instance, to, doing);
      const took = duration(performance.now() - began);
      const how = vms[at]?.state === 'stopped' && !isSaved(vms[at]) ? 'is stopped' : done;
      terminal.say(`${instance.name} ${how} (${took})${ending(instance, vms[at])}`);
    } else terminal.say(`${instance.name}: ${vms[at]?.state}`);
  }
  if (terminal.format === 'json') terminal.json(vms.length === 1 ? vms[0] : vms);
}

/** The VM was recovered: writes are lost. */
function isRecovered(vm: Vm | undefined): boolean {
  return ['recovered', 'cold_boot'].includes(vm?.reason?.code ?? '');
}

/** Not of a VM that never ran, or whose last writes are lost. */
const isSaved = (vm: Vm) => vm.boot > 0 && !isRecovered(vm);

function ending({ name }: Instance, vm: Vm | undefined): string {
  if (isRecovered(vm)) return `\n${vm?.reason?.message}`;
  return vm?.state === 'running' ? `. Log in: berth ssh ${name}` : '';
}

/** A suspended VM is what was asked for, as for a stop of a stopped one. */
async function suspend(berth: Berth, id: string): Promise<Vm> {
  try {
    return await berth.instances.suspendVm(id);
  } catch (error) {
    if (!(error instanceof BerthError) || error.status !== 409) throw error;
    const vm = await berth.vm(id).get();
    if (vm.state === 'suspended' || vm.state === 'suspending') return vm;
    throw error;
  }
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
        done: 'is stopped; all saved',
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
        done: 'is suspended; memory and disk saved',
        to: 'suspended',
        begin: suspend,
      }),
  },
  FLUSH,
];
