/** Strikes the fleet with one fault, and takes it back. */
import assert from 'node:assert/strict';
import { commandLineOf } from '../../../src/host/qemu/qemu-process.ts';
import { until } from '../../support/waiting.ts';
import { addressOf, type Fleet, type MachineName, POSTGRES_ADDRESSES } from './fleet.ts';
import type { Observer } from './observer.ts';
import type { Fault } from './schedule.ts';

type Heal = () => Promise<void> | void;

/** What a machine's packets meet, as rules of nft(8) for those that arrive and those that leave. */
interface Filter {
  readonly in: string;
  readonly out: string;
}

const SLOW = 'limit rate over 128 kbytes/second burst 64 kbytes drop';
const LOSSY = 'numgen random mod 100 < 15 drop';
const both = (rule: string): Filter => ({ in: `iifname "e0" ${rule}`, out: `oifname "e0" ${rule}` });
const between = (addresses: readonly string[]): Filter => {
  const set = `{ ${addresses.join(', ')} }`;
  return { in: `ip saddr ${set} drop`, out: `ip daddr ${set} drop` };
};

const FILTERS: Partial<Record<Fault['how'], Filter>> = {
  cut: both('drop'),
  'cut shortly': both('drop'),
  mute: { in: 'accept', out: 'oifname "e0" drop' },
  deaf: { in: 'iifname "e0" drop', out: 'accept' },
  slow: both(SLOW),
  lossy: both(LOSSY),
  'cut from control-1': between([addressOf('control-1')]),
  'cut from the store': between([addressOf('store')]),
  'cut from PostgreSQL': between(POSTGRES_ADDRESSES),
};

let filters = 0;

/** In a table of its own: a round may strike a machine twice. */
async function filterPackets(fleet: Fleet, name: MachineName, filter: Filter): Promise<Heal> {
  const machine = fleet.machine(name);
  const table = `rounds${++filters}`;
  const chain = (hook: 'input' | 'output', rule: string) =>
    `chain ${hook} { type filter hook ${hook} priority -200; policy accept; ${rule}; }`;
  const rules = `table inet ${table} {\n${chain('input', filter.in)}\n${chain('output', filter.out)}\n}\n`;
  await machine.run('nft', ['-f', '-'], { input: rules });
  return async () => void (await machine.run('nft', ['delete', 'table', 'inet', table]));
}

function signalEach(pids: readonly number[], signal: NodeJS.Signals): void {
  for (const pid of pids) {
    try {
      process.kill(pid, signal);
    } catch {
      // It has ended.
    }
  }
}

/** Returns what takes it back. */
export function strike(fleet: Fleet, observer: Observer, fault: Fault): Promise<Heal> {
  if (fault.of === 'leader') return strikeLeader(fleet, fault);
  if (fault.of === 'store' && fault.how === 'pause') return Promise.resolve(fleet.store.pause());
  if (fault.of === 'store' && fault.how === 'wrong') return Promise.resolve(fleet.answerWrongly());
  const name = (fault.of === 'store' ? 'store' : `${fault.of}-${fault.number}`) as MachineName;
  const filter = FILTERS[fault.how];
  return filter ? filterPackets(fleet, name, filter) : strikeMachine(fleet, observer, fault, name);
}

async function strikeLeader({ cluster }: Fleet, { how }: Fault): Promise<Heal> {
  assert(how === 'kill' || how === 'pause' || how === 'cut', how);
  const node = await until('a node leads', () => cluster.leader());
  cluster.strike(node, how);
  return () => cluster.heal(node, how);
}

async function strikeMachine(
  fleet: Fleet,
  observer: Observer,
  { of, how, jump_s }: Fault,
  name: MachineName,
): Promise<Heal> {
  const machine = fleet.machine(name);
  const kept = fleet.process(name);
  const named = (word: string) =>
    machine.pids().filter((pid) => commandLineOf(pid).some((each) => each.includes(word)));
  const agent = () => machine.pids().filter((pid) => commandLineOf(pid).at(-1) === 'agent');
  switch (how) {
    case 'power':
      kept.hold();
      await machine.powerOff();
      return async () => {
        await machine.boot();
        kept.start();
      };
    case 'new disk':
      kept.hold();
      await machine.powerOff();
      fleet.replaceDisk(name);
      await machine.boot();
      return () => kept.start();
    case 'kill': {
      // The launcher starts the agent again; all of another role's machine ends.
      if (of === 'rack') {
        signalEach(agent(), 'SIGKILL');
        return () => undefined;
      }
      kept.hold();
      signalEach(machine.pids(), 'SIGKILL');
      return () => kept.start();
    }
    case 'kill fencer':
      signalEach(named('fencer-process'), 'SIGKILL');
      return () => undefined;
    case 'kill VM': {
      const pid = observer.pidOn(name);
      if (pid !== undefined) signalEach([pid], 'SIGKILL');
      return () => undefined;
    }
    case 'pause': {
      if (of !== 'rack') return machine.pause();
      const pids = agent();
      signalEach(pids, 'SIGSTOP');
      return () => signalEach(pids, 'SIGCONT');
    }
    case 'clock':
      fleet.setClock(name, jump_s);
      return () => fleet.setClock(name, 0);
    default:
      return assert.fail(`a fault that is known: ${how}`);
  }
}
