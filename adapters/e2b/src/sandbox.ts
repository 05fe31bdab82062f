/**
 * Maps E2B's sandboxes to Berth's instances: ids, labels, state, time limit, the user in the guest, and access tokens.
 * The adapter has no database. What it knows of a sandbox is in the labels of the instance:
 *
 *   e2b-sandbox     the name of the template that the sandbox was made from; marks the instance as a sandbox
 *   e2b-ends-at     when its time limit ends
 *   e2b-on-timeout  what happens then: `kill` or `pause`
 *   (other labels)  E2B's metadata, under their own names
 *   e2b-template    marks an instance as a template. A sandbox that gets this label becomes a template: its time limit
 *                   no longer applies, and this adapter refuses to kill it until the label is removed
 */
import { createCipheriv, createDecipheriv, randomBytes } from 'node:crypto';
import { closeSync, openSync, readFileSync, writeSync } from 'node:fs';
import { posix } from 'node:path';
import type { Instance, VmHandle, VmState } from '../../../client/src/berth.ts';
import { Failure } from './failures.ts';

export const SANDBOX_LABEL = 'e2b-sandbox';
export const TEMPLATE_LABEL = 'e2b-template';
const ENDS_AT_LABEL = 'e2b-ends-at';
const ON_TIMEOUT_LABEL = 'e2b-on-timeout';
const OWN_LABEL = /^e2b-/;
/** Of E2B's agent in a sandbox. From 0.6.2 on the package would send metadata of files, which are not covered. */
export const ENVD_VERSION = '0.6.1';
export const DEFAULT_TIMEOUT_S = 300;
const MAX_TIMEOUT_S = 366 * 24 * 3600;

export type OnTimeout = 'kill' | 'pause';
export type Labels = Readonly<Record<string, string>>;

const INSTANCE_ID = /^inst_([0-9a-z]{26})$/;
const SANDBOX_ID = /^[0-9a-z]{26}$/;

/** An id that is part of a host name: the instance's without `inst_`. */
export function sandboxIdOf(instance_id: string): string {
  return INSTANCE_ID.exec(instance_id)?.[1] ?? instance_id;
}

/** @throws Failure not_found */
export function instanceIdOf(sandbox_id: string): string {
  if (!SANDBOX_ID.test(sandbox_id)) throw new Failure('not_found', `There is no sandbox ${sandbox_id}.`);
  return `inst_${sandbox_id}`;
}

/** @throws Failure invalid_argument when metadata has a name that the adapter uses itself */
export function labelsOf(
  template: string,
  metadata: Labels,
  ends_at: Date,
  on_timeout: OnTimeout,
): Record<string, string> {
  const taken = Object.keys(metadata).find((name) => OWN_LABEL.test(name));
  if (taken !== undefined)
    throw new Failure('invalid_argument', `Metadata must not begin with e2b-, as ${taken} does.`);
  return {
    ...metadata,
    [SANDBOX_LABEL]: template,
    [ENDS_AT_LABEL]: ends_at.toISOString(),
    [ON_TIMEOUT_LABEL]: on_timeout,
  };
}

export function withEnd(labels: Labels, ends_at: Date): Record<string, string> {
  return { ...labels, [ENDS_AT_LABEL]: ends_at.toISOString() };
}

export function metadataOf(labels: Labels): Record<string, string> {
  return Object.fromEntries(Object.entries(labels).filter(([name]) => !OWN_LABEL.test(name)));
}

/** Null: it has no end, because it is not a sandbox, or has become a template, or somebody has removed or changed the label. */
export function endOf(labels: Labels): Date | null {
  const at = new Date(labels[ENDS_AT_LABEL] ?? Number.NaN);
  const lasts = labels[SANDBOX_LABEL] === undefined || labels[TEMPLATE_LABEL] !== undefined;
  return lasts || Number.isNaN(at.getTime()) ? null : at;
}

export function onTimeoutOf(labels: Labels): OnTimeout {
  return labels[ON_TIMEOUT_LABEL] === 'pause' ? 'pause' : 'kill';
}

/** @throws Failure invalid_argument */
export function endIn(timeout_s: unknown, now: Date): Date {
  const seconds = timeout_s === undefined || timeout_s === null ? DEFAULT_TIMEOUT_S : timeout_s;
  if (typeof seconds !== 'number' || !(seconds >= 0 && seconds <= MAX_TIMEOUT_S))
    throw new Failure('invalid_argument', 'timeout must be between 0 seconds and a year.');
  return new Date(now.getTime() + seconds * 1_000);
}

const RUNNING: readonly VmState[] = ['starting', 'running', 'restarting'];

/** E2B has two states. All that `Sandbox.connect()` starts again is paused. */
export function stateOf(state: VmState): 'running' | 'paused' {
  return RUNNING.includes(state) ? 'running' : 'paused';
}

export function viewOf(instance: Instance) {
  const { labels, vm } = instance;
  return {
    sandboxID: sandboxIdOf(instance.id),
    templateID: labels[SANDBOX_LABEL] ?? '',
    clientID: 'berth',
    alias: instance.name,
    startedAt: vm.started_at ?? instance.created_at,
    // A date is required; this one is far away.
    endAt: (endOf(labels) ?? new Date('9999-01-01')).toISOString(),
    state: stateOf(vm.state),
    cpuCount: instance.cpus,
    memoryMB: instance.memory_mib,
    diskSizeMB: instance.disk_gib * 1024,
    envdVersion: ENVD_VERSION,
    metadata: metadataOf(labels),
  };
}

export const DEFAULT_USER = 'user';
const ENVIRONMENT_FILE = '/etc/profile.d/e2b-environment.sh';

/** As in E2B's templates: a user `user` with a home, who may do everything where sudo is installed. */
const PREPARE = `
id -u ${DEFAULT_USER} >/dev/null 2>&1 || useradd --create-home --shell /bin/bash ${DEFAULT_USER} || exit
if [ -d /etc/sudoers.d ]; then echo '${DEFAULT_USER} ALL=(ALL:ALL) NOPASSWD: ALL' >/etc/sudoers.d/${DEFAULT_USER}; fi
cat >${ENVIRONMENT_FILE}
`;

/** @param profile from `profileOf` */
export async function prepareGuest(vm: VmHandle, profile: string): Promise<void> {
  const { exit_code, stderr } = await vm.exec(['sh', '-c', PREPARE], { input: profile });
  if (exit_code !== 0) throw new Failure('internal', `The guest could not be prepared: ${stderr}`);
}

/** Login shells read it, which all commands of E2B are. A command's own variables win. */
export function profileOf(environment: Labels): string {
  return Object.entries(environment)
    .map(([name, value]) => {
      if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(name) || typeof value !== 'string' || value.includes('\0'))
        throw new Failure('invalid_argument', `${name} cannot be an environment variable.`);
      return `[ -n "\${${name}+x}" ] || export ${name}='${value.replaceAll("'", `'\\''`)}'\n`;
    })
    .join('');
}

/** The user of `Authorization: Basic USER:`. */
export function userOf(authorization: string | undefined): string {
  const [, encoded = ''] = /^Basic ([A-Za-z0-9+/=]+)$/.exec(authorization ?? '') ?? [];
  return Buffer.from(encoded, 'base64').toString('utf8').split(':')[0] || DEFAULT_USER;
}

/** Absolute; relative paths and `~` begin at the user's home. */
export function guestPath(user: string, path: string): string {
  const home = user === 'root' ? '/root' : `/home/${user}`;
  return posix.resolve(home, path.replace(/^~(?=\/|$)/, '.'));
}

const CIPHER = 'aes-256-gcm';
const KEY_BYTES = 32;
const NONCE_BYTES = 12;
const TAG_BYTES = 16;
const MAX_TOKEN_CHARACTERS = 4096;

/**
 * The access token of a sandbox. The package `e2b` sends it, and not the API key, with commands and files. It is the API key,
 * encrypted for one sandbox: so the adapter keeps no list of tokens, a token of one sandbox opens no other, and a revoked API
 * key revokes them all.
 */
export class AccessTokens {
  readonly #key: Buffer;
  constructor(key: Buffer) {
    if (key.length !== KEY_BYTES) throw new Error(`The key has ${key.length} bytes instead of ${KEY_BYTES}.`);
    this.#key = key;
  }

  seal(sandbox_id: string, api_key: string): string {
    const nonce = randomBytes(NONCE_BYTES);
    const cipher = createCipheriv(CIPHER, this.#key, nonce).setAAD(Buffer.from(sandbox_id));
    const sealed = Buffer.concat([cipher.update(api_key, 'utf8'), cipher.final()]);
    return Buffer.concat([nonce, cipher.getAuthTag(), sealed]).toString('base64url');
  }

  /** Returns the API key. @throws Failure unauthenticated */
  open(sandbox_id: string, token: string): string {
    const bytes = Buffer.from(token.slice(0, MAX_TOKEN_CHARACTERS), 'base64url');
    try {
      const nonce = bytes.subarray(0, NONCE_BYTES);
      const decipher = createDecipheriv(CIPHER, this.#key, nonce, { authTagLength: TAG_BYTES });
      decipher.setAAD(Buffer.from(sandbox_id));
      decipher.setAuthTag(bytes.subarray(NONCE_BYTES, NONCE_BYTES + TAG_BYTES));
      const sealed = bytes.subarray(NONCE_BYTES + TAG_BYTES);
      return Buffer.concat([decipher.update(sealed), decipher.final()]).toString('utf8');
    } catch (cause) {
      const message = 'The access token is not valid for this sandbox. Sandbox.connect() returns a new one.';
      throw new Failure('unauthenticated', message, { cause });
    }
  }
}

/** The key in `path`, which is made if there is none; without a path one that ends with this process. */
export function readKey(path: string | undefined): Buffer {
  if (path === undefined) return randomBytes(KEY_BYTES);
  try {
    const file = openSync(path, 'wx', 0o600);
    writeSync(file, randomBytes(KEY_BYTES));
    closeSync(file);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  }
  return readFileSync(path);
}
