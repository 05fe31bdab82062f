/**
 * Words for people about events: formats an event as a sentence that says who did what to which instance, and which
 * generation that made.
 */
import type { Event, EventType } from './generated.ts';

/** Who acts. @param name as the API tells it beside the id */
export function actorWords(actor: string, name: string | null): string {
  if (actor.startsWith('host_')) return 'the host';
  if (actor === 'system') return 'Berth';
  if (actor === 'operator') return 'the operator of the server';
  // A service account may have any name, even a user's address.
  if (!name) return actor;
  return actor.startsWith('sa_') ? `${name} (service account)` : name;
}

/** `ada@example.org flushed web: generation 6`. @param nameOf the present names of instances */
export function eventSentence(
  event: Event,
  nameOf: (instance_id: string) => string | undefined = () => undefined,
): string {
  const sentence = SENTENCES[event.type]?.(factsOf(event, nameOf)) ?? event.type;
  // A name stays as it is written.
  return sentence.replace(/^the /, 'The ');
}

type Fields = Readonly<Record<string, unknown>>;

interface Facts {
  readonly who: string;
  /** A person or a service account acts; else the host, or Berth by itself. */
  readonly is_asked: boolean;
  readonly actor: string;
  readonly data: Fields;
  /** The name of the instance. */
  readonly it: string;
  /** What a VM's change was made for. */
  readonly cause: unknown;
  /** The reason of the VM's state. */
  readonly reason: Fields;
  /** ` (generation 6)` of the disk; empty before the first flush. */
  readonly generation: string;
  readonly nameOf: (instance_id: string) => string | undefined;
}

function factsOf({ data, actor_name }: Event, nameOf: Facts['nameOf']): Facts {
  const { actor } = data;
  const instance = fields(data['instance']);
  const { generation } = fields(instance['disk']);
  return {
    who: actorWords(actor, actor_name),
    is_asked: actor !== 'system' && !actor.startsWith('host_'),
    actor,
    data,
    it: text(instance['name'], 'the instance'),
    cause: data['cause'],
    reason: fields(fields(instance['vm'])['reason']),
    generation: Number(generation) > 0 ? ` (generation ${generation})` : '',
    nameOf,
  };
}

function fields(value: unknown): Fields {
  return typeof value === 'object' && value !== null ? (value as Fields) : {};
}

function text(value: unknown, otherwise = ''): string {
  return typeof value === 'string' && value !== '' ? value : otherwise;
}

const named = (part: unknown) => text(fields(part)['name'], text(fields(part)['id']));
const because = ({ reason }: Facts) => text(reason['message'], 'the reason is not known');

const SENTENCES: Readonly<Record<EventType, (facts: Facts) => string>> = {
  'instance.created': ({ who, it }) => `${who} created ${it}`,
  'instance.deleted': ({ who, it }) => `${who} deleted ${it}`,
  'instance.forked': forked,
  'instance.restored': ({ who, it, data, generation }) =>
    `${who} restored ${it} to generation ${fields(data['restored_from'])['generation']}${generation.replace('(', '(now ')}`,
  'instance.ssh_keys_replaced': ({ who, it }) => `${who} changed which SSH keys ${it} accepts`,
  'vm.started': started,
  'vm.stopped': stopped,
  'vm.suspended': suspended,
  'vm.restarted': ({ who, it, cause }) =>
    cause === 'guest_reboot' ? `The guest of ${it} rebooted` : `${who} restarted ${it}`,
  'vm.failed': (facts) => `${facts.it} failed: ${because(facts)}`,
  'vm.recovered': (facts) => `${facts.it} recovered: ${because(facts)}`,
  'disk.flushed': flushed,
  'disk.flush_failed': flushFailed,
  'egress.denied': ({ it, data }) => `${it} was denied to reach ${destinationOf(fields(data['denied']))}`,
  'port.created': ({ who, it, data }) => `${who} published port ${portOf(data)} of ${it}`,
  'port.changed': portChanged,
  'port.deleted': ({ who, it, data }) => `${who} removed the URL of port ${portOf(data)} of ${it}`,
  'ssh_key.added': ({ who, data }) => `${who} added the SSH key ${named(data['ssh_key'])}`,
  'ssh_key.revoked': ({ who, data }) => `${who} revoked the SSH key ${named(data['ssh_key'])}`,
  'api_key.created': ({ who, data }) => `${who} created the API key ${named(data['api_key'])}`,
  'api_key.rotated': ({ who, data }) => `${who} rotated the API key ${named(data['api_key'])}`,
  'api_key.revoked': ({ who, data }) => `${who} revoked the API key ${named(data['api_key'])}`,
  'member.added': ({ data }) => `${emailOf(data)} joined as ${roleOf(data)}`,
  'member.removed': ({ who, actor, data }) =>
    fields(data['member'])['id'] === actor ? `${who} left` : `${who} removed ${emailOf(data)}`,
  'member.role_changed': ({ who, data }) => `${who} changed the role of ${emailOf(data)} to ${roleOf(data)}`,
  'webhook.disabled': disabled,
  'webhook.ping': ({ who, data }) => `${who} sent a ping to the webhook ${named(data['webhook'])}`,
};

const destinationOf = ({ name, address, port }: Fields) => {
  const to = text(name, text(address, 'a destination'));
  if (typeof port !== 'number') return to;
  return to.includes(':') ? `[${to}]:${port}` : `${to}:${port}`;
};
const portOf = (data: Fields) => `${fields(data['port'])['port'] ?? ''}`;
const emailOf = (data: Fields) => text(fields(data['member'])['email'], 'a member');
const roleOf = (data: Fields) => text(fields(data['member'])['role'], 'member');

function forked({ who, it, data, nameOf }: Facts): string {
  const { instance_id, generation } = fields(data['forked_from']);
  const parent = text(instance_id, 'another instance');
  return `${who} forked ${it} from generation ${generation} of ${nameOf(parent) ?? parent}`;
}

function started({ who, it, cause, reason }: Facts): string {
  const how = reason['code'] === 'cold_boot' ? ', which lost its memory and booted' : '';
  if (cause === 'woken') return `A connection started ${it}${how}`;
  if (cause === 'host_drain') return `${it} continues on another host, because its own is drained${how}`;
  if (cause === 'restart_on_failure') return `${it} was started again after it had failed${how}`;
  return `${who} ${reason['code'] === 'resumed' ? 'resumed' : 'started'} ${it}${how}`;
}

function suspended(facts: Facts): string {
  const { who, it, reason, generation } = facts;
  if (reason['code'] === 'resume_failed') return `${it} could not be resumed: ${because(facts)}`;
  return `${who} suspended ${it}${generation}`;
}

function stopped({ who, it, cause, generation }: Facts): string {
  if (cause === 'idle') return `${who} stopped ${it}, which was idle${generation}`;
  if (cause === 'host_drain') return `${it} stopped to move to another host${generation}`;
  if (cause === 'guest_poweroff') return `The guest of ${it} powered off${generation}`;
  return `${who} stopped ${it}${generation}`;
}

function flushed({ who, is_asked, it, data }: Facts): string {
  const { generation, trigger } = fields(data['flush']);
  const what = `generation ${generation}`;
  if (trigger === 'import') return `${who} imported the disk of ${it}: ${what}`;
  if (trigger === 'request') return `${who} flushed ${it}: ${what}`;
  if (trigger === 'auto' || trigger === undefined) return `Automatic flush of ${it}: ${what}`;
  const verb = trigger === 'suspend' ? 'suspend' : 'stop';
  return `Flush of ${it} before its ${verb}${is_asked ? `, which ${who} asked for` : ''}: ${what}`;
}

function flushFailed({ who, it, data, cause }: Facts): string {
  const why = text(fields(data['error'])['message'], 'the reason is not known');
  if (cause === 'asked') return `The flush of ${it} that ${who} asked for failed: ${why}`;
  if (cause === 'final') return `The flush of ${it} before its stop failed, and is tried again: ${why}`;
  return `An automatic flush of ${it} failed: ${why}`;
}

function portChanged({ who, it, data }: Facts): string {
  const { access, hostname, is } = fields(data['change']);
  const port = `port ${portOf(data)} of ${it}`;
  const name = text(hostname, 'a hostname');
  if (is === 'added') return `${who} added the hostname ${name} to ${port}`;
  if (is === 'removed') return `${who} removed the hostname ${name} from ${port}`;
  if (is === 'active') return `The TXT record of ${name} was found: ${port} answers to it`;
  if (is === 'pending') return `The TXT record of ${name} is missing: ${port} no longer answers to it`;
  return `${who} made ${port} ${text(access, 'different')}`;
}

function disabled({ who, data }: Facts): string {
  const name = named(data['webhook']);
  const { disabled_reason } = fields(data['webhook']);
  if (disabled_reason === 'gone') return `Berth disabled the webhook ${name}: its server answered 410`;
  if (disabled_reason === 'failing') return `Berth disabled the webhook ${name}: it failed for five days`;
  return `${who} disabled the webhook ${name}`;
}
