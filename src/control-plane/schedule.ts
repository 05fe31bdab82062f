/**
 * Lists every background task of the control plane: its function, how often it runs, and what wakes it earlier.
 * tasks/run-tasks.ts runs the tasks.
 */
import type { MarkedStore } from '../object-store/store-mark.ts';
import type { Log } from '../shared/log.ts';
import type { QuotaLimits } from '../shared/quotas.ts';
import { reportExpiry } from './api-keys/change-api-key.ts';
import { type AuditLog, onAuditCommitted } from './audit/append.ts';
import { sealAudit } from './audit/seal-audit.ts';
import { type Db, transaction } from './db/pool.ts';
import { checkpointDisks, compactDisks } from './disks/compact-disk.ts';
import type { DiskKeys } from './disks/data-keys.ts';
import { dropOldGenerations } from './disks/generation-store.ts';
import { freeDeleted, freeMemory, freeSegments, sweepOrphans } from './disks/remove-objects.ts';
import { claimStoreOfInstallation } from './disks/store.ts';
import { dispatchEvents, onCommitted } from './events/append.ts';
import { expireHosts, LeaseMonitor, recountHosts } from './fleet/lease-monitor.ts';
import { checkIdentities } from './identity/login-at-provider.ts';
import type { OidcContext } from './identity/oidc/provider.ts';
import { type Deliver, sendMails } from './mail/send-mails.ts';
import { type Mailbox, onPosted } from './mail/store.ts';
import { composeMails } from './notifications/compose-mails.ts';
import { raiseNotifications } from './notifications/raise-notifications.ts';
import { checkHostnamesByDns } from './ports/check-hostnames.ts';
import type { HttpEndpoint } from './ports/model.ts';
import { sweep } from './sweep.ts';
import type { Task } from './tasks/run-tasks.ts';
import { countUsage } from './usage/store.ts';
import { DeadlineMonitor, enforceDeadlines } from './vms/deadline-monitor.ts';
import { downsampleMetrics } from './vms/metric-history.ts';
import { moveVms } from './vms/move-vm.ts';
import { restartFailed } from './vms/start-vm.ts';
import { stopIdle } from './vms/stop-vm.ts';
import { fanOutToWebhooks } from './webhooks/fan-out.ts';

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
    { name: 'count-usage', every_ms: 20 * S, run: () => transaction(db, countUsage) },
    { name: 'stop-idle', every_ms: 5 * S, run: () => stopIdle(db, log) },
    { name: 'report-expiry', every_ms: 10 * MIN, run: () => reportExpiry(db) },
    { name: 'sweep', every_ms: 10 * MIN, run: () => sweep(db) },
    { name: 'downsample-metrics', every_ms: H, run: () => downsampleMetrics(db) },
    { name: 'check-hostnames', every_ms: 5 * S, run: () => checkHostnamesByDns(db, parts.http) },
    { name: 'check-identities', every_ms: MIN, run: checkPeople },
    { name: 'claim-store', every_ms: 5 * S, run: () => claimStoreOfInstallation(store) },
    { name: 'free-deleted', every_ms: 30 * S, wake_on: 'deleting', run: () => freeDeleted(db, store, log) },
    { name: 'free-memory', every_ms: 10 * MIN, run: () => freeMemory(db, store, log) },
    {
      name: 'free-segments',
      every_ms: 10 * MIN,
      run: free,
    },
    { name: 'drop-generations', every_ms: 5 * MIN, run: async () => void (await dropOldGenerations(db)) },
    { name: 'checkpoint-disks', every_ms: MIN, run: () => checkpointDisks(parts, log, signal) },
    { name: 'compact-disks', every_ms: 5 * MIN, run: () => compactDisks(parts, log, signal) },
    { name: 'sweep-orphans', every_ms: 6 * H, run: () => sweepOrphans(db, store, log) },
  ];
}
