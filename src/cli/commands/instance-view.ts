/** Renders an instance as text for people. Each row of a setting has the name of the option that sets it. */
import type { Instance } from '../../../client/src/berth.ts';
import { durationText } from '../../../client/src/words.ts';
import { bytes, plural, when } from '../table.ts';
import { SSH_USER } from './ssh.ts';

/** Of a failed VM the server knows only an upper bound. */
export function savedState({ disk, vm }: Pick<Instance, 'disk' | 'vm'>): string {
  if (disk.dirty_bytes > 0)
    return `${vm.state === 'failed' ? 'at most ' : ''}${bytes(disk.dirty_bytes)} unsaved`;
  return disk.generation === 0 ? 'nothing yet' : 'all saved';
}

type Row = [name: string, value: string];

export const stateOf = ({ deleting, vm }: Instance) => (deleting ? 'deleting' : vm.state);

export const labelsText = (labels: Instance['labels']) =>
  Object.entries(labels)
    .map(([key, value]) => `${key}=${value}`)
    .join(' ');

function bootOf({ boot, started_at }: Instance['vm']): string {
  if (boot === 0) return 'never started';
  return `${boot}, ${started_at === null ? 'not up yet' : when(started_at)}`;
}

/** Permanent, so it is shown in every state, with what a connection does now. */
function sshOf({ name, ssh, vm, wake_on_connect }: Instance): string {
  const address = `ssh -p ${ssh.port} ${SSH_USER}@${ssh.host}`;
  if (vm.state === 'running') return address;
  if (vm.state === 'starting' || vm.state === 'restarting') return `${address} (works once it runs)`;
  const wakes = wake_on_connect && vm.state !== 'failed';
  return `${address} (${wakes ? 'a connection starts the VM' : `start it first: berth start ${name}`})`;
}

function autoFlushOf({ auto_flush_seconds: seconds }: Instance): string {
  return seconds === null
    ? 'off: saved only by a stop, a suspend or berth flush'
    : `${durationText(seconds)}: saved this often while it runs`;
}

function idleTimeoutOf({ idle_timeout_seconds: seconds }: Instance): string {
  return seconds === null
    ? 'off: it runs on without use'
    : `${durationText(seconds)}: stops after this time without use`;
}

function keepOf({ generations_keep: { last, daily_days } }: Instance): string {
  const daily = daily_days === 0 ? '' : `, then one a day for ${plural(daily_days, 'day')}`;
  return `${last},${daily_days}: the last ${plural(last, 'generation')}${daily}`;
}

/** @param parent the name of what it was forked from */
function forkedRow({ forked_from }: Instance, parent: string): Row[] {
  if (forked_from === null) return [];
  const { generation, dirty_bytes } = forked_from;
  const without = dirty_bytes === 0 ? '' : `, without ${bytes(dirty_bytes)} that it had not saved`;
  return [['forked from', `${parent}, generation ${generation}${without}`]];
}

export function growthWords({ disk, disk_gib }: Pick<Instance, 'disk' | 'disk_gib'>): string {
  return disk.growth === 'done'
    ? `The root file system has grown to ${disk_gib} GiB.`
    : `The root file system grows to ${disk_gib} GiB when the guest boots.`;
}

/** Nothing of an instance that any untainted host may run. */
function placementRow({ placement: { host_labels, tolerations } }: Instance): Row[] {
  const words = [
    ...(Object.keys(host_labels).length === 0 ? [] : [`hosts with ${labelsText(host_labels)}`]),
    ...(tolerations.length === 0 ? [] : [`tolerates ${tolerations.join(', ')}`]),
  ];
  return words.length === 0 ? [] : [['runs on', words.join('; ')]];
}

export function rowsOf(instance: Instance, parent: string): Row[] {
  const { vm, disk } = instance;
  return [
    ['name', instance.name],
    ['id', instance.id],
    ['state', stateOf(instance)],
    ...(vm.reason === null ? [] : ([['', `${vm.reason.message} (${vm.reason.code})`]] as Row[])),
    ['boot', bootOf(vm)],
    ['ssh', sshOf(instance)],
    ['image', instance.image],
    ['cpus', String(instance.cpus)],
    ['memory', bytes(instance.memory_mib * 2 ** 20)],
    ['disk', `${instance.disk_gib} GiB, of which ${bytes(disk.stored_bytes)} are stored`],
    ...(disk.growth === 'next_boot' ? ([['', growthWords(instance)]] as Row[]) : []),
    ['generation', disk.generation === 0 ? 'none yet' : `${disk.generation}, ${when(disk.durable_at)}`],
    ['saved', savedState(instance)],
    ['auto-flush', autoFlushOf(instance)],
    ['idle-timeout', idleTimeoutOf(instance)],
    ['wake', instance.wake_on_connect ? 'on: a connection starts the VM' : 'off'],
    ['restart', instance.restart === 'never' ? 'never' : 'on failure: a failed VM is started again'],
    ['egress', egressWords(instance.egress)],
    ['keep', keepOf(instance)],
    ['labels', labelsText(instance.labels) || '-'],
    ...placementRow(instance),
    ...forkedRow(instance, parent),
    ['created', when(instance.created_at)],
  ];
}

/** For people: what a mode means. */
export function egressWords({ mode, allow }: Instance['egress']): string {
  if (mode === 'open') return 'open: the public internet';
  if (mode === 'deny') return 'deny: nothing';
  return `allow: ${allow.length === 0 ? 'nothing yet' : allow.join(', ')}`;
}
