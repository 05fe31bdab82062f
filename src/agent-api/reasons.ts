/** The codes of `vm.reason` and of failed flushes. `docs/errors.md` explains each. A published code keeps its meaning. */
export const VM_REASONS = [
  'start_requested',
  'stop_requested',
  'restart_requested',
  'suspend_requested',
  'ready',
  'stopped',
  'suspended',
  'resumed',
  'guest_poweroff',
  'guest_reboot',
  'woken',
  'restart_on_failure',
  'idle',
  'host_drain',
  'flush_pending',
  'recovered',
  'cold_boot',
  'suspend_failed',
  'resume_failed',
  'vm_died',
  'guest_panicked',
  'boot_timeout',
  'starting_timeout',
  'restarting_timeout',
  'suspending_timeout',
  'start_failed',
  'disk_full',
  'disk_error',
  'guest_agent_silent',
  'image_missing',
  'segment_corrupt',
  'object_store_unavailable',
  'control_plane_away',
  'host_lost',
  'fenced',
] as const;
export type VmReasonCode = (typeof VM_REASONS)[number];

/** In addition to the codes above for a problem of the host, its object store or the disk. */
export const FLUSH_FAILURES = ['flush_failed', 'interrupted', 'vm_gone'] as const;
export type FlushFailureCode = VmReasonCode | (typeof FLUSH_FAILURES)[number];
