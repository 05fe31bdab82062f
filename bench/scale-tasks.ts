/** The background tasks of the control plane whose cost may grow with the instances: each as src/tasks/schedule.ts runs it. */
import type { Db } from '../src/db/pool.ts';
import { listWasteful } from '../src/disks/compaction-store.ts';
import { LeaseMonitor } from '../src/hosts/lease-monitor.ts';
import type { Log } from '../src/lib/log.ts';
import { QUOTA_DEFAULTS } from '../src/lib/quotas.ts';
import { raiseNotifications } from '../src/notifications/raise-notifications.ts';
import { countUsage } from '../src/tasks/count-usage.ts';
import { dispatchEvents } from '../src/tasks/dispatch-events.ts';
import { downsampleMetrics } from '../src/tasks/downsample-metrics.ts';
import { dropGenerations } from '../src/tasks/drop-generations.ts';
import { enforceDeadlines } from '../src/tasks/enforce-deadlines.ts';
import { expireHosts } from '../src/tasks/expire-hosts.ts';
import { moveVms } from '../src/tasks/move-vms.ts';
import { recountHosts } from '../src/tasks/recount-hosts.ts';
import { reportExpiry } from '../src/tasks/report-expiry.ts';
import { restartFailed } from '../src/tasks/restart-failed.ts';
import { stopIdle } from '../src/tasks/stop-idle.ts';
import { sweep } from '../src/tasks/sweep.ts';
import { DeadlineMonitor } from '../src/vms/deadline-monitor.ts';
import { fanOutToWebhooks } from '../src/webhooks/fan-out.ts';

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
    'count-usage': () => countUsage(db),
    'stop-idle': () => stopIdle(db, log),
    'report-expiry': () => reportExpiry(db),
    sweep: () => sweep(db),
    'downsample-metrics': () => downsampleMetrics(db),
    'drop-generations': () => dropGenerations(db),
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
