/**
 * The table of schedules: every background task of the control plane, how often it runs, and what wakes it earlier.
 * A task's file has its name.
 */
import type { OidcContext } from '../accounts/oidc-context.ts';
import type { AuditLog } from '../audit/append.ts';
import { onAuditCommitted } from '../audit/wake.ts';
import type { Db } from '../db/pool.ts';
import type { DiskKeys } from '../disks/data-keys.ts';
import { onCommitted } from '../events/wake.ts';
import { LeaseMonitor } from '../hosts/lease-monitor.ts';
import type { Log } from '../lib/log.ts';
import type { QuotaLimits } from '../lib/quotas.ts';
import { type Mailbox, onPosted } from '../mail/mailbox.ts';
import type { Deliver } from '../mail/mailer.ts';
import { raiseNotifications } from '../notifications/raise-notifications.ts';
import type { MarkedStore } from '../object-store/store-mark.ts';
import type { HttpEndpoint } from '../ports/model.ts';
import { DeadlineMonitor } from '../vms/deadline-monitor.ts';
import { fanOutToWebhooks } from '../webhooks/fan-out.ts';
import { checkHostnames } from './check-hostnames.ts';
import { checkIdentities } from './check-identities.ts';
import { checkpointDisks } from './checkpoint-disks.ts';
import { claimStore } from './claim-store.ts';
import { compactDisks } from './compact-disks.ts';
import { composeMails } from './compose-mails.ts';
import { countUsage } from './count-usage.ts';
import { dispatchEvents } from './dispatch-events.ts';
import { downsampleMetrics } from './downsample-metrics.ts';
import { dropGenerations } from './drop-generations.ts';
import { enforceDeadlines } from './enforce-deadlines.ts';
import { expireHosts } from './expire-hosts.ts';
import { freeDeleted } from './free-deleted.ts';
import { freeMemory } from './free-memory.ts';
import { freeSegments } from './free-segments.ts';
import { moveVms } from './move-vms.ts';
import { recountHosts } from './recount-hosts.ts';
import { reportExpiry } from './report-expiry.ts';
import { restartFailed } from './restart-failed.ts';
import type { Task } from './run-tasks.ts';
import { sealAudit } from './seal-audit.ts';
import { sendMails } from './send-mails.ts';
import { stopIdle } from './stop-idle.ts';
import { sweep } from './sweep.ts';
import { sweepOrphans } from './sweep-orphans.ts';

export interface ScheduleParts {
  readonly db: Db;
  readonly log: Log;
  readonly audit: AuditLog;
  readonly store: MarkedStore;
  readonly disk_keys: DiskKeys;
  readonly mailbox: Mailbox;
  readonly deliver: Deliver;
  readonly public_url: string;
  readonly http: HttpEndpoint;
  readonly removal_delay_ms: number;
  readonly quotas: QuotaLimits;
  readonly signups: 'open' | 'closed';
  /** Null: there is no OpenID provider. */
  readonly oidc: Pick<OidcContext, 'provider' | 'identities'> | null;
  readonly signal: AbortSignal;
}

const S = 1_000;
const MIN = 60 * S;
const H = 60 * MIN;

/** The consumers of the outbox. */
const CONSUMERS = [fanOutToWebhooks, raiseNotifications];

export function schedule(parts: ScheduleParts): Task[] {
  const { db, log, audit, store, signal } = parts;
  const leases = new LeaseMonitor();
  const deadlines = new DeadlineMonitor();
  const dispatch = () => dispatchEvents(db, CONSUMERS);
  const seal = () => sealAudit(db, audit);
  const compose = () => composeMails(parts);
  const send = () => sendMails(parts, signal);
  const free = async () => {
    await freeSegments(db, store, log, parts.removal_delay_ms);
  };
  const { oidc } = parts;
  const checkPeople = async () => {
    if (oidc) await checkIdentities({ ...parts, ...oidc }, log, signal);
  };
  return [
    { name: 'dispatch-events', every_ms: S, wake_by: onCommitted, gap_ms: 20, run: dispatch },
    { name: 'seal-audit', every_ms: S, wake_by: onAuditCommitted, gap_ms: 250, run: seal },
    { name: 'compose-mails', every_ms: 5 * S, wake_on: 'mail', gap_ms: S, run: compose },
    { name: 'send-mails', every_ms: 5 * S, wake_by: onPosted, run: send },
    { name: 'expire-hosts', every_ms: S, run: () => expireHosts(db, leases, log) },
    { name: 'enforce-deadlines', every_ms: 2 * S, run: () => enforceDeadlines(db, deadlines) },
    { name: 'restart-failed', every_ms: S, run: () => restartFailed(db, parts.quotas, log) },
    { name: 'move-vms', every_ms: S, wake_on: 'moving', gap_ms: 100, run: () => moveVms(db, log) },
    { name: 'recount-hosts', every_ms: 10 * MIN, run: () => recountHosts(db, log) },
    { name: 'count-usage', every_ms: 20 * S, run: () => countUsage(db) },
    { name: 'stop-idle', every_ms: 5 * S, run: () => stopIdle(db, log) },
    { name: 'report-expiry', every_ms: 10 * MIN, run: () => reportExpiry(db) },
    { name: 'sweep', every_ms: 10 * MIN, run: () => sweep(db) },
    { name: 'downsample-metrics', every_ms: H, run: () => downsampleMetrics(db) },
    { name: 'check-hostnames', every_ms: 5 * S, run: () => checkHostnames(db, parts.http) },
    { name: 'check-identities', every_ms: MIN, run: checkPeople },
    { name: 'claim-store', every_ms: 5 * S, run: () => claimStore(store) },
    { name: 'free-deleted', every_ms: 30 * S, wake_on: 'deleting', run: () => freeDeleted(db, store, log) },
    { name: 'free-memory', every_ms: 10 * MIN, run: () => freeMemory(db, store, log) },
    {
      name: 'free-segments',
      every_ms: 10 * MIN,
      run: free,
    },
    { name: 'drop-generations', every_ms: 5 * MIN, run: () => dropGenerations(db) },
    { name: 'checkpoint-disks', every_ms: MIN, run: () => checkpointDisks(parts, log, signal) },
    { name: 'compact-disks', every_ms: 5 * MIN, run: () => compactDisks(parts, log, signal) },
    { name: 'sweep-orphans', every_ms: 6 * H, run: () => sweepOrphans(db, store, log) },
  ];
}
