/**
 * Runs the control plane's webhook delivery in the benchmark's process, with a database of its own: outbox, fan-out and
 * senders.
 */
import { randomBytes } from 'node:crypto';
import { sql } from 'kysely';
import { pathsIn } from '../src/config/paths.ts';
import { migrate } from '../src/control-plane/db/migrate.ts';
import { NotifyHub } from '../src/control-plane/db/notify.ts';
import { type Db, openPool, transaction } from '../src/control-plane/db/pool.ts';
import { append, dispatchEvents, onCommitted } from '../src/control-plane/events/append.ts';
import { runTasks } from '../src/control-plane/tasks/run-tasks.ts';
import { newSecret } from '../src/control-plane/webhooks/attempt.ts';
import { fanOutToWebhooks } from '../src/control-plane/webhooks/fan-out.ts';
import { Outbound } from '../src/control-plane/webhooks/outbound.ts';
import { runSenders } from '../src/control-plane/webhooks/senders.ts';
import { insertWebhook } from '../src/control-plane/webhooks/store.ts';
import { type EmbeddedPostgres, startEmbeddedPostgres } from '../src/launcher/embedded-postgres.ts';
import { newId, type OrgId } from '../src/shared/ids.ts';
import { createLog, type Log } from '../src/shared/log.ts';
import { Sealer } from '../src/shared/seal.ts';

/** About as large as an event of a VM. */
const DATA = { vm: { note: 'x'.repeat(600) } };

export class Delivery {
  readonly db: Db;
  readonly #postgres: EmbeddedPostgres;
  readonly #hub: NotifyHub;
  readonly #outbound = new Outbound({ allow_cidrs: [{ address: '127.0.0.0', prefix: 8 }] });
  readonly #secrets = new Sealer(randomBytes(32), 'berth webhooks v1');
  readonly #log: Log = createLog('bench', 'warn');
  #stop: AbortController | undefined;
  #running: Promise<unknown> = Promise.resolve();

  private constructor(postgres: EmbeddedPostgres) {
    this.#postgres = postgres;
    this.db = openPool(postgres.database_url, () => undefined);
    this.#hub = new NotifyHub(postgres.database_url, this.#log);
    this.#hub.start();
  }

  static async open(data_dir: string): Promise<Delivery> {
    const postgres = await startEmbeddedPostgres(pathsIn(data_dir), { say: () => undefined });
    await migrate(postgres.database_url);
    return new Delivery(postgres);
  }

  start(): void {
    const stop = new AbortController();
    this.#stop = stop;
    const events = {
      name: 'events',
      every_ms: 1_000,
      wake_by: onCommitted,
      run: () => dispatchEvents(this.db, [fanOutToWebhooks]),
    };
    const parts = {
      db: this.db,
      hub: this.#hub,
      log: this.#log,
      outbound: this.#outbound,
      secrets: this.#secrets,
    };
    this.#running = Promise.all([
      runTasks([events], this.#hub, this.#log, stop.signal),
      runSenders(parts, stop.signal),
    ]);
  }

  async stop(): Promise<void> {
    this.#stop?.abort();
    await this.#running;
  }

  /** A new organisation with a webhook for each of these, as if they had answered 2xx before. */
  async organisation(origins: readonly string[]): Promise<OrgId> {
    const org_id = newId('org');
    await this.db
      .insertInto('organisations')
      .values({ id: org_id, name: 'bench', billing_email: 'bench@localhost' })
      .execute();
    for (const origin of origins) {
      const id = newId('wh');
      const secret = this.#secrets.seal(newSecret(), id);
      const webhook = {
        id,
        org_id,
        name: 'bench',
        url: `${origin}/hook`,
        events: ['*'],
        secret,
        created_by: 'system',
      };
      await insertWebhook(this.db, webhook);
    }
    await this.db
      .updateTable('webhooks')
      .set({ proven_at: new Date() })
      .where('org_id', '=', org_id)
      .execute();
    return org_id;
  }

  async removeWebhooks(org_id: OrgId): Promise<void> {
    await this.db.updateTable('webhooks').set({ org_id: null }).where('org_id', '=', org_id).execute();
  }

  /** Appends the events in one transaction. */
  async happen(org_id: OrgId, count: number): Promise<void> {
    await transaction(this.db, async (tx) => {
      for (let n = 0; n < count; n++) {
        await append(tx, { org_id, type: 'vm.started', data: DATA, actor: 'system' });
      }
    });
  }

  /** Fans the outbox out, without senders. */
  async fanOut(): Promise<void> {
    await dispatchEvents(this.db, [fanOutToWebhooks]);
  }

  /** Otherwise autovacuum would run during one of the next figures. */
  async tidy(): Promise<void> {
    for (const table of ['events', 'webhook_deliveries', 'webhook_attempts']) {
      await sql`vacuum (analyze) ${sql.table(table)}`.execute(this.db);
    }
  }

  async close(): Promise<void> {
    await this.stop();
    await this.#hub.stop();
    await this.#outbound.close();
    await this.db.destroy();
    await this.#postgres.stop();
  }
}
