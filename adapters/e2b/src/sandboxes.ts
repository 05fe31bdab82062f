/**
 * Implements E2B's control API, which creates, finds, pauses, resumes and kills sandboxes. Each call uses the API key
 * of its caller.
 */
import { randomBytes } from 'node:crypto';
import { type Berth, BerthError, type Instance } from '../../../client/src/berth.ts';
import type { Deadlines } from './deadlines.ts';
import { Failure } from './failures.ts';
import {
  type AccessTokens,
  ENVD_VERSION,
  endIn,
  endOf,
  instanceIdOf,
  type Labels,
  labelsOf,
  prepareGuest,
  profileOf,
  SANDBOX_LABEL,
  sandboxIdOf,
  stateOf,
  TEMPLATE_LABEL,
  viewOf,
  withEnd,
} from './sandbox.ts';

const BASE = 'base';
const MAX_PAGE = 100;
const CHANGE_ATTEMPTS = 5;
/** Parts of a creation that would be unsafe to ignore, or whose absence a program would not notice. */
const NOT_COVERED = ['network', 'iam', 'mcp', 'volumeMounts', 'autoResume'] as const;

export interface CreateBody {
  readonly templateID?: string;
  readonly metadata?: Labels;
  readonly envVars?: Labels;
  readonly timeout?: number;
  readonly allow_internet_access?: boolean;
  readonly autoPause?: boolean;
}

type Client = (api_key: string) => Berth;

export class Sandboxes {
  readonly #client: Client;
  readonly #tokens: AccessTokens;
  readonly #deadlines: Deadlines;
  /** Where `PORT-SANDBOX.domain` leads to this adapter. */
  readonly #domain: string;

  constructor(client: Client, tokens: AccessTokens, deadlines: Deadlines, domain: string) {
    this.#client = client;
    this.#tokens = tokens;
    this.#deadlines = deadlines;
    this.#domain = domain;
  }

  async create(api_key: string, body: CreateBody) {
    const missing = NOT_COVERED.find((part) => (body as Record<string, unknown>)[part] != null);
    if (missing !== undefined)
      throw new Failure('unimplemented', `Berth's adapter does not cover ${missing} of Sandbox.create().`);
    const berth = this.#client(api_key);
    const template = body.templateID ?? BASE;
    const ends_at = endIn(body.timeout, new Date());
    const labels = labelsOf(
      template,
      body.metadata ?? {},
      ends_at,
      body.autoPause === true ? 'pause' : 'kill',
    );
    const profile = profileOf(body.envVars ?? {});
    const instance = await this.#instanceOf(berth, template, labels, body.allow_internet_access !== false);
    try {
      await this.#deadlines.follow(sandboxIdOf(instance.id));
      const vm = await berth.vm(instance.id).start();
      await prepareGuest(vm, profile);
    } catch (error) {
      // Nobody knows its id.
      await berth.instances.delete(instance.id).catch(() => undefined);
      throw error;
    }
    return this.#opened(api_key, instance);
  }

  async #instanceOf(
    berth: Berth,
    template: string,
    labels: Record<string, string>,
    open: boolean,
  ): Promise<Instance> {
    const name = `e2b-${randomBytes(8).toString('hex')}`;
    const egress = open ? {} : { egress: { mode: 'deny' as const } };
    if (template === BASE) return berth.instances.create({ name, labels, ...egress });
    const [parent] = (
      await berth.call('listInstances', { query: { label: [`${TEMPLATE_LABEL}=${template}`] } })
    ).data;
    if (parent === undefined) {
      const message = `There is no template ${template}: no instance has the label ${TEMPLATE_LABEL}=${template}.`;
      throw new Failure('not_found', message);
    }
    const fork = await berth.instances.fork(parent.id, { name });
    return berth.instances.change(fork.id, { labels, ...egress });
  }

  #opened(api_key: string, { id, labels }: Instance) {
    const sandbox_id = sandboxIdOf(id);
    return {
      sandboxID: sandbox_id,
      templateID: labels[SANDBOX_LABEL] ?? '',
      clientID: 'berth',
      envdVersion: ENVD_VERSION,
      envdAccessToken: this.#tokens.seal(sandbox_id, api_key),
      domain: this.#domain,
    };
  }

  /** @throws Failure not_found also for an instance that is no sandbox, and for one that is being deleted */
  async #find(berth: Berth, sandbox_id: string, onEtag?: (etag: string) => void): Promise<Instance> {
    const found = await berth.instances.get(instanceIdOf(sandbox_id), onEtag ? { onEtag } : {});
    if (found.deleting || found.labels[SANDBOX_LABEL] === undefined)
      throw new Failure('not_found', `There is no sandbox ${sandbox_id}.`);
    return found;
  }

  async get(api_key: string, sandbox_id: string) {
    return viewOf(await this.#find(this.#client(api_key), sandbox_id));
  }

  async list(api_key: string, query: URLSearchParams) {
    const wanted = wantedLabels(query.get('metadata') ?? '');
    const template = query.get('template');
    const of_template = template === null ? SANDBOX_LABEL : `${SANDBOX_LABEL}=${template}`;
    const limit = Math.min(Number(query.get('limit') ?? MAX_PAGE) || MAX_PAGE, MAX_PAGE);
    const cursor = query.get('nextToken') ?? undefined;
    const label = [of_template, ...wanted];
    const page = await this.#client(api_key).call('listInstances', { query: { label, limit, cursor } });
    const states = query.get('state')?.split(',') ?? ['running', 'paused'];
    const shown = page.data.filter(({ deleting, vm }) => !deleting && states.includes(stateOf(vm.state)));
    return { sandboxes: shown.map(viewOf), next: page.next_cursor };
  }

  async kill(api_key: string, sandbox_id: string): Promise<void> {
    const berth = this.#client(api_key);
    const { id, labels } = await this.#find(berth, sandbox_id);
    const template = labels[TEMPLATE_LABEL];
    if (template !== undefined) {
      const message = `Sandbox ${sandbox_id} is the template ${template}. Remove its label ${TEMPLATE_LABEL} first.`;
      throw new Failure('already_exists', message);
    }
    await berth.instances.delete(id);
    this.#deadlines.forget(sandbox_id);
  }

  /** Without `memory` the disk alone is kept, and the next start boots. */
  async pause(api_key: string, sandbox_id: string, memory: boolean): Promise<void> {
    const berth = this.#client(api_key);
    const { id, vm } = await this.#find(berth, sandbox_id);
    if (stateOf(vm.state) === 'paused')
      throw new Failure('already_exists', `Sandbox ${sandbox_id} is paused already.`);
    if (memory) await berth.vm(id).suspend();
    else await berth.vm(id).stop();
  }

  /** Starts it unless it runs. The end of a running sandbox is only moved back. */
  async connect(api_key: string, sandbox_id: string, timeout: unknown, memory: boolean) {
    const berth = this.#client(api_key);
    const { id, vm } = await this.#find(berth, sandbox_id);
    const runs = stateOf(vm.state) === 'running';
    const instance = await this.#setEnd(berth, sandbox_id, timeout, runs);
    const handle = berth.vm(id);
    if (vm.state === 'suspending') await berth.instances.waitFor(id, 'suspended');
    if (vm.state === 'stopping') await berth.instances.waitFor(id, 'stopped');
    if (!runs && !memory) await handle.stop();
    if (vm.state !== 'running') await handle.start();
    await this.#deadlines.follow(sandbox_id);
    return this.#opened(api_key, instance);
  }

  async setTimeout(api_key: string, sandbox_id: string, timeout: unknown): Promise<void> {
    await this.#setEnd(this.#client(api_key), sandbox_id, timeout, false);
    await this.#deadlines.follow(sandbox_id);
  }

  /** Labels are replaced together, so a change between reading and writing is not overwritten. */
  async #setEnd(berth: Berth, sandbox_id: string, timeout: unknown, only_later: boolean): Promise<Instance> {
    const ends_at = endIn(timeout, new Date());
    for (let attempt = 1; ; attempt++) {
      let if_match: string | undefined;
      const instance = await this.#find(berth, sandbox_id, (etag) => {
        if_match = etag;
      });
      const before = endOf(instance.labels);
      if (only_later && (before === null || before >= ends_at)) return instance;
      try {
        return await berth.instances.change(
          instance.id,
          { labels: withEnd(instance.labels, ends_at) },
          { if_match },
        );
      } catch (error) {
        const is_stale = error instanceof BerthError && error.code === 'PRECONDITION_FAILED';
        if (!is_stale || attempt === CHANGE_ATTEMPTS) throw error;
      }
    }
  }
}

/** The package encodes each name and value twice. @throws Failure invalid_argument */
function wantedLabels(metadata: string): string[] {
  try {
    return [...new URLSearchParams(metadata)].map((pair) => pair.map(decodeURIComponent).join('='));
  } catch (cause) {
    throw new Failure('invalid_argument', 'metadata is not encoded as the package does.', { cause });
  }
}
