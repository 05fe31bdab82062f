/**
 * Runs what delivers webhooks, each part in a process that a test may kill: PostgreSQL with its supervisor, control
 * planes and receivers. There is no agent and no guest; the test inserts the events.
 */
import { type ChildProcess, fork, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import {
  appendFileSync,
  existsSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathsIn } from '../../src/config/paths.ts';
import { type Db, openPool, transaction } from '../../src/control-plane/db/pool.ts';
import { append } from '../../src/control-plane/events/append.ts';
import { ensureSecrets, makeDataFolder } from '../../src/launcher/data-folder.ts';
import { type EmbeddedPostgres, startEmbeddedPostgres } from '../../src/launcher/embedded-postgres.ts';
import type { OrgId } from '../../src/shared/ids.ts';
import { copyCluster } from './cluster-template.ts';
import { ownPort } from './own-ports.ts';
import { RestClient } from './rest-client.ts';
import { untilWorks } from './waiting.ts';

const MAIN = join(import.meta.dirname, '..', '..', 'src', 'main.ts');
const RECEIVER = join(import.meta.dirname, 'recording-receiver.ts');
const PASSWORD = 'only for this test';

/** A request that a receiver got. The same event may come several times. */
export interface Received {
  readonly id: string;
  readonly body_hash: string;
  readonly n: number;
}

interface ControlPlane {
  readonly data_dir: string;
  readonly port: number;
  child: ChildProcess | undefined;
}

/** All control planes of an installation share one object store. */
function shareObjects(from: string, to: string): void {
  rmSync(pathsIn(to).objects, { recursive: true });
  symlinkSync(pathsIn(from).objects, pathsIn(to).objects);
}

export class DeliveryLab {
  readonly folder = mkdtempSync(join(tmpdir(), 'berth-lab-'));
  readonly #key = randomBytes(32).toString('hex');
  readonly #control_planes: ControlPlane[] = [];
  readonly #receivers = new Map<string, { readonly port: number; child: ChildProcess | undefined }>();
  #postgres: EmbeddedPostgres | undefined;
  #db: Db | undefined;
  #client: RestClient | undefined;
  #org_id: OrgId | undefined;

  /** Starts this many control planes, with an administrator. */
  static async start(control_planes: number): Promise<DeliveryLab> {
    const lab = new DeliveryLab();
    try {
      const paths = pathsIn(join(lab.folder, 'db'));
      await mkdir(paths.postgres, { recursive: true, mode: 0o711 });
      await copyCluster(join(paths.postgres, 'cluster'));
      lab.#postgres = await startEmbeddedPostgres(paths, { say: () => undefined });
      lab.#db = openPool(lab.#postgres.database_url, () => undefined);
      for (let nth = 0; nth < control_planes; nth++) {
        const data_dir = join(lab.folder, `c${nth}`);
        await makeDataFolder(pathsIn(data_dir));
        if (nth > 0) shareObjects(join(lab.folder, 'c0'), data_dir);
        // Only one data folder is the host of the database.
        if (nth === 0) await ensureSecrets(pathsIn(data_dir), Buffer.from(lab.#key, 'hex'), false);
        lab.#control_planes.push({ data_dir, port: await ownPort(), child: undefined });
        await lab.startControlPlane(nth);
      }
      lab.#client = new RestClient(`http://127.0.0.1:${lab.#control_planes[0]?.port}`);
      await lab.#client.login('admin@localhost', PASSWORD);
      lab.#org_id = (await lab.db.selectFrom('organisations').select('id').executeTakeFirstOrThrow()).id;
      return lab;
    } catch (error) {
      await lab.dispose();
      throw error;
    }
  }

  get db(): Db {
    return present(this.#db);
  }

  get client(): RestClient {
    return present(this.#client);
  }

  /** Resolves when it serves its API. If it ends before, for example without a database, it is restarted, as by the launcher. */
  async startControlPlane(nth: number): Promise<void> {
    const control_plane = present(this.#control_planes[nth]);
    control_plane.child = this.#spawnControlPlane(nth, control_plane);
    const answers = async () => {
      const { child } = control_plane;
      if (child?.exitCode !== null || child.signalCode !== null) {
        control_plane.child = this.#spawnControlPlane(nth, control_plane);
        const log = this.#logOf(nth);
        throw new Error(`it ended: ${existsSync(log) ? readFileSync(log, 'utf8') : ''}`);
      }
      await fetch(`http://127.0.0.1:${control_plane.port}/healthz`);
    };
    await untilWorks('the control plane answers', answers, { timeout_ms: 120_000, every_ms: 100 });
  }

  #spawnControlPlane(nth: number, { data_dir, port }: ControlPlane): ChildProcess {
    const child = spawn(process.execPath, [MAIN, 'control-plane'], {
      env: {
        PATH: process.env['PATH'],
        DATABASE_URL: present(this.#postgres).database_url,
        BERTH_DATA_DIR: data_dir,
        BERTH_LISTEN: `127.0.0.1:${port}`,
        BERTH_SECRET_KEY: this.#key,
        BERTH_ADMIN_PASSWORD: PASSWORD,
        BERTH_WEBHOOK_ALLOW_CIDRS: '127.0.0.1/32',
        BERTH_RATE_LIMITS: 'off',
      },
      stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
    });
    child.stderr?.on('data', (text: Buffer) => appendFileSync(this.#logOf(nth), text));
    return child;
  }

  async killControlPlane(nth: number): Promise<void> {
    await kill(this.#control_planes[nth]?.child);
  }

  /** The supervisor restarts it. */
  killPostgres(): void {
    process.kill(present(this.#postgres).pid(), 'SIGKILL');
  }

  /** Resolves with its URL when it listens. A reused name keeps its port and its recorded requests. */
  async startReceiver(name: string): Promise<string> {
    const port = this.#receivers.get(name)?.port ?? (await ownPort());
    const child = fork(RECEIVER, [this.#fileOf(name), String(port)], { stdio: 'inherit' });
    this.#receivers.set(name, { port, child });
    await once(child, 'message');
    return `http://127.0.0.1:${port}/`;
  }

  async killReceiver(name: string): Promise<void> {
    await kill(this.#receivers.get(name)?.child);
  }

  /** Holds its answers until {@link answer} is called. */
  hold(name: string): void {
    writeFileSync(`${this.#fileOf(name)}.hold`, '');
  }

  answer(name: string): void {
    rmSync(`${this.#fileOf(name)}.hold`);
  }

  received(name: string): readonly Received[] {
    const file = this.#fileOf(name);
    if (!existsSync(file)) return [];
    const lines = readFileSync(file, 'utf8').split('\n').slice(0, -1);
    return lines.map((line) => {
      const [id = '', body_hash = '', n] = line.split(' ');
      return { id, body_hash, n: Number(n) };
    });
  }

  async createWebhook(name: string, url: string): Promise<string> {
    const body = { name, url, events: ['member.added'] };
    return (await this.client.expect<{ id: string }>(201, 'POST', '/v1/webhooks', body)).id;
  }

  /** `data.n` counts from `first`; ten events a transaction. Retries when the database goes away, which may double some. */
  async happen(first: number, count: number): Promise<void> {
    const org_id = present(this.#org_id);
    for (let n = first; n < first + count; n += 10) {
      const last = Math.min(n + 10, first + count);
      const write = () =>
        transaction(this.db, async (tx) => {
          for (let each = n; each < last; each++) {
            await append(tx, { org_id, type: 'member.added', data: { n: each }, actor: 'system' });
          }
        });
      await untilWorks('events are written', write);
    }
  }

  async dispose(): Promise<void> {
    for (const { child } of [...this.#control_planes, ...this.#receivers.values()]) await kill(child);
    await this.#db?.destroy();
    await this.#postgres?.stop();
    rmSync(this.folder, { recursive: true, force: true, maxRetries: 5 });
  }

  #logOf(nth: number): string {
    return join(this.folder, `c${nth}.log`);
  }

  #fileOf(name: string): string {
    return join(this.folder, `received-${name}`);
  }
}

function present<T>(value: T | undefined): T {
  if (value === undefined) throw new Error('the lab is not up');
  return value;
}

async function kill(child: ChildProcess | undefined): Promise<void> {
  if (child === undefined || child.exitCode !== null || child.signalCode !== null) return;
  const gone = once(child, 'exit');
  child.kill('SIGKILL');
  await gone;
}
