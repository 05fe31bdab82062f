/**
 * Runs and times the control plane's background tasks whose cost may grow with the number of instances. Each runs as
 * src/control-plane/schedule.ts runs it.
 */

import { reportExpiry } from '../src/control-plane/api-keys/change-api-key.ts';
import { type Db, transaction } from '../src/control-plane/db/pool.ts';
import { listWasteful } from '../src/control-plane/disks/compaction-store.ts';
import { dropOldGenerations } from '../src/control-plane/disks/generation-store.ts';
import { dispatchEvents } from '../src/control-plane/events/append.ts';
import { expireHosts, LeaseMonitor, recountHosts } from '../src/control-plane/fleet/lease-monitor.ts';
import { raiseNotifications } from '../src/control-plane/notifications/raise-notifications.ts';
import { sweep } from '../src/control-plane/sweep.ts';
import { countUsage } from '../src/control-plane/usage/store.ts';
import { DeadlineMonitor, enforceDeadlines } from '../src/control-plane/vms/deadline-monitor.ts';
import { downsampleMetrics } from '../src/control-plane/vms/metric-history.ts';
import { moveVms } from '../src/control-plane/vms/move-vm.ts';
import { restartFailed } from '../src/control-plane/vms/start-vm.ts';
import { stopIdle } from '../src/control-plane/vms/stop-vm.ts';
import { fanOutToWebhooks } from '../src/control-plane/webhooks/fan-out.ts';
import type { Log } from '../src/shared/log.ts';
import { QUOTA_DEFAULTS } from '../src/shared/quotas.ts';

/** Runs each of them once, one after the other, as a control plane that has just started. Returns the ms of all, and the slowest. */
export async function timeTasks(
  db: Db,
  log: Log,
): Promise<{ readonly ms: number; readonly slowest: string }> {
  const tasks = {
    'dispatch-events': () => dispatchEvents(db, [fanOutToWebhooks, raiseNotifications]),
    'expire-hosts': () => expireHosts(db, new LeaseMonitor(), log),
    'enforce-deadlines': () => enforceDeadlines(db, new DeadlineMonitor()),
    'restart-failed': () => restartFailed(db, QUOTA_DEFAULTS, log),
    'move-vms': () => moveVms(db, log),
    'recount-hosts': () => recountHosts(db, log),
    'count-usage': () => transaction(db, countUsage),
    'stop-idle': () => stopIdle(db, log),
    'report-expiry': () => reportExpiry(db),
    sweep: () => sweep(db),
    'downsample-metrics': () => downsampleMetrics(db),
    'drop-generations': async () => void (await dropOldGenerations(db)),
    'compact-disks, its search': () => listWasteful(db, 1),
  };
  let ms = 0;
  let slowest = { name: '', ms: 0 };
  for (const [name, run] of Object.entries(tasks)) {
    const began = performance.now();
    await run();
    const took_ms = performance.now() - began;
    ms += took_ms;
    if (took_ms > slowest.ms) slowest = { name, ms: took_ms };
  }
  return { ms, slowest: `the slowest: ${slowest.name}, ${slowest.ms.toFixed(1)} ms` };
}
