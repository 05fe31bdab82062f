/**
 * Builds the shell commands that do the same as a form: one of the command line `berth`, and one of curl, which takes
 * the API key from $BERTH_API_KEY. Both leave out values that are the API's defaults. Pure.
 */

import type {
  ChangeInstanceRequest,
  CreateInstanceRequest,
  Instance,
} from '../../../client/src/generated.ts';
import { durationText } from '../../../client/src/words.ts';

export interface Commands {
  readonly cli: string;
  readonly curl: string;
}

/** The API's defaults for a new instance. */
export const NEW_DEFAULTS = {
  image: 'debian-12',
  cpus: 1,
  memory_mib: 512,
  disk_gib: 8,
  labels: {},
  idle_timeout_seconds: null,
  wake_on_connect: false,
  auto_flush_seconds: 60,
  restart: 'never',
  egress: { mode: 'open', allow: [] as string[] },
} as const;

/** One word of a shell. */
export function quoted(word: string): string {
  return /^[\w./:=@%+,-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

const line = (words: readonly string[]) => words.map(quoted).join(' ');

/** `/v1/instances/$ID`: a variable of the shell in a path. */
function curl(method: string, url: string, body?: object): string {
  return [
    `curl -sS -X ${method} "${url}"`,
    '-H "Authorization: Bearer $BERTH_API_KEY"',
    ...(body === undefined
      ? []
      : ["-H 'Content-Type: application/json'", `-d ${quoted(JSON.stringify(body))}`]),
  ].join(' \\\n  ');
}

type Settings = Pick<
  ChangeInstanceRequest,
  | 'cpus'
  | 'memory_mib'
  | 'disk_gib'
  | 'labels'
  | 'auto_flush_seconds'
  | 'idle_timeout_seconds'
  | 'wake_on_connect'
  | 'restart'
  | 'egress'
>;

/** The options of `berth create` and `berth set` for the fields that are there. */
function optionsOf(settings: Settings): string[] {
  const {
    cpus,
    memory_mib,
    disk_gib,
    labels = {},
    auto_flush_seconds,
    idle_timeout_seconds,
    wake_on_connect,
    restart,
    egress = {},
  } = settings;
  const option = (name: string, value: string | number | undefined) =>
    value === undefined ? [] : [`--${name}`, String(value)];
  const time = (name: string, seconds: number | null | undefined) =>
    seconds === undefined ? [] : [`--${name}`, seconds === null ? 'off' : durationText(seconds)];
  return [
    ...option('cpus', cpus),
    ...option('memory', memory_mib === undefined ? undefined : `${memory_mib}m`),
    ...option('disk', disk_gib === undefined ? undefined : `${disk_gib}g`),
    ...Object.entries(labels).flatMap(([key, value]) => option('label', `${key}=${value}`)),
    ...time('auto-flush', auto_flush_seconds),
    ...time('idle-timeout', idle_timeout_seconds),
    ...(wake_on_connect === undefined ? [] : [wake_on_connect ? '--wake' : '--no-wake']),
    ...option('restart', restart),
    ...option('egress', egress.mode),
    ...(egress.allow ?? []).flatMap((host) => option('allow', host)),
  ];
}

export interface Creation {
  readonly body: CreateInstanceRequest;
  /** Its VM is started at once. */
  readonly start: boolean;
  /** Null: all keys of the creator's account. */
  readonly ssh_key_ids: readonly string[] | null;
}

export function createCommands({ body, start, ssh_key_ids }: Creation, origin: string): Commands {
  const shown = changedFields(body, NEW_DEFAULTS) as CreateInstanceRequest;
  return {
    cli: createByCli({ body: shown, start, ssh_key_ids }),
    curl: createByCurl({ body: shown, start, ssh_key_ids }, `${origin}/v1/instances`),
  };
}

function createByCli({ body, start, ssh_key_ids }: Creation): string {
  const { name, image, user_data, ...settings } = body;
  const at_once = start && ssh_key_ids === null;
  const create = line([
    ...['berth', 'create', name],
    ...(image === undefined ? [] : ['--image', image]),
    ...optionsOf(settings),
    ...(user_data === undefined ? [] : ['--user-data', '-']),
    ...(at_once ? ['--start'] : []),
  ]);
  const commands = [user_data === undefined ? create : `printf %s ${quoted(user_data)} | ${create}`];
  if (ssh_key_ids !== null) {
    const chosen = ssh_key_ids.length === 0 ? ['--none'] : ssh_key_ids.flatMap((id) => ['--set', id]);
    commands.push(line(['berth', 'instance', 'ssh-keys', name, ...chosen]));
  }
  if (start && !at_once) commands.push(line(['berth', 'start', name]));
  return commands.join(' &&\n');
}

function createByCurl({ body, start, ssh_key_ids }: Creation, url: string): string {
  const create = curl('POST', url, body);
  const later = [
    ...(ssh_key_ids === null ? [] : [curl('PUT', `${url}/$INSTANCE_ID/ssh-keys`, { ssh_key_ids })]),
    ...(start ? [curl('POST', `${url}/$INSTANCE_ID/vm`)] : []),
  ];
  if (later.length === 0) return create;
  // The id of the answer. No other field named `id` has an instance's.
  const read = `grep -o '"id":"inst_[^"]*"' | cut -d '"' -f 4`;
  return [`INSTANCE_ID=$(${create} |\n  ${read})`, ...later].join('\n');
}

const STOP_FIRST = '# Other CPUs or memory need a stopped VM: DELETE …/vm, and wait until it is stopped.\n';

const isResizeOfRunning = ({ vm }: Instance, { cpus, memory_mib }: ChangeInstanceRequest) =>
  vm.state !== 'stopped' && (cpus ?? memory_mib) !== undefined;

/** The change of an instance's settings, or null if the form holds what the instance has. */
export function changeCommands(
  instance: Instance,
  wanted: ChangeInstanceRequest,
  origin: string,
): Commands | null {
  const body = changedFields(wanted, instance);
  if (Object.keys(body).length === 0) return null;
  const { name, generations_keep: keep, ...settings } = body;
  const set = line([
    ...['berth', 'set', instance.name],
    ...(name === undefined ? [] : ['--name', name]),
    ...optionsOf(settings),
    ...(keep ? ['--keep', `${keep.last},${keep.daily_days}`] : []),
  ]);
  const no_labels = body.labels !== undefined && Object.keys(body.labels).length === 0;
  return {
    cli: no_labels ? `# berth set cannot remove all labels; curl can.\n${set}` : set,
    curl: `${isResizeOfRunning(instance, body) ? STOP_FIRST : ''}${curl('PATCH', `${origin}/v1/instances/${instance.id}`, body)}`,
  };
}

interface Forking {
  readonly name: string;
  /** Undefined: the newest. */
  readonly generation?: number | undefined;
  /** Whether a running parent is flushed first; null: it does not run. */
  readonly flush: boolean | null;
  /** Whether the fork gets the values of the secrets. */
  readonly secrets: boolean;
}

export function forkCommands({ id, name: parent }: Instance, forking: Forking, origin: string): Commands {
  const { name, generation, flush, secrets } = forking;
  const url = `${origin}/v1/instances/${id}`;
  const fork = curl('POST', `${url}/fork`, {
    name,
    ...(generation === undefined ? {} : { generation }),
    ...(secrets ? { secrets } : {}),
  });
  return {
    cli: line([
      ...['berth', 'fork', parent, name],
      ...(generation === undefined ? [] : ['--generation', String(generation)]),
      ...(flush === false ? ['--no-flush'] : []),
      ...(secrets ? ['--secrets'] : []),
    ]),
    curl: flush === true ? `${curl('POST', `${url}/vm/flush`)} &&\n${fork}` : fork,
  };
}

/** The fields that differ. Both sides are JSON; the order of keys tells no difference in the form. */
export function changedFields<T extends object>(fields: T, from: object): Partial<T> {
  const before = new Map(Object.entries(from));
  return Object.fromEntries(
    Object.entries(fields).filter(
      ([name, value]) => JSON.stringify(value) !== JSON.stringify(before.get(name)),
    ),
  ) as Partial<T>;
}
