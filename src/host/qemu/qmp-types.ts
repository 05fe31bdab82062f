/**
 * The part of QMP that Berth speaks, typed after QEMU 7.2's schema (docs/interop/qemu-qmp-ref: run-state, job,
 * block-core, block-export, transaction, misc). Names keep QMP's own spelling: they cross a wire.
 */
const JOB_STATES = [
  'undefined',
  'created',
  'running',
  'paused',
  'ready',
  'standby',
  'waiting',
  'pending',
  'aborting',
  'concluded',
  'null',
] as const;
export type JobState = (typeof JOB_STATES)[number];

const RUN_STATES = [
  'debug',
  'inmigrate',
  'internal-error',
  'io-error',
  'paused',
  'postmigrate',
  'prelaunch',
  'finish-migrate',
  'restore-vm',
  'running',
  'save-vm',
  'shutdown',
  'suspended',
  'watchdog',
  'guest-panicked',
  'colo',
] as const;
export type RunState = (typeof RUN_STATES)[number];

export interface StatusInfo {
  readonly running: boolean;
  readonly singlestep: boolean;
  readonly status: RunState;
}

/** `error` is present only after the job has failed. The unit of progress depends on the job (bytes for backup). */
export interface JobInfo {
  readonly id: string;
  readonly type: string;
  readonly status: JobState;
  readonly 'current-progress': number;
  readonly 'total-progress': number;
  readonly error?: string;
}

/** `count` is in bytes, a multiple of `granularity`. */
export interface DirtyBitmapInfo {
  readonly name?: string;
  readonly count: number;
  readonly granularity: number;
  readonly recording: boolean;
  readonly busy: boolean;
  readonly persistent: boolean;
  readonly inconsistent?: boolean;
}

export interface BlockImageInfo {
  readonly filename: string;
  readonly format: string;
  readonly 'virtual-size': number;
  readonly 'actual-size'?: number;
}

export interface BlockNodeInfo {
  readonly 'node-name'?: string;
  readonly drv: string;
  readonly ro: boolean;
  readonly file: string;
  readonly backing_file?: string;
  readonly image: BlockImageInfo;
  readonly 'dirty-bitmaps'?: readonly DirtyBitmapInfo[];
}

export interface BlockStats {
  readonly rd_bytes: number;
  readonly wr_bytes: number;
  readonly rd_operations: number;
  readonly wr_operations: number;
  readonly unmap_operations: number;
  readonly flush_operations: number;
}

export interface BlockStatsInfo {
  readonly device?: string;
  readonly qdev?: string;
  readonly 'node-name'?: string;
  readonly stats: BlockStats;
}

export interface BlockExportInfo {
  readonly id: string;
  readonly type: string;
  readonly 'node-name': string;
  readonly 'shutting-down': boolean;
}

/** A node of the block graph. Drivers have too many options to list them all. */
export interface BlockdevOptions {
  readonly driver: string;
  readonly 'node-name': string;
  readonly [option: string]: unknown;
}

export interface BackupArguments {
  readonly 'job-id': string;
  /** The node or qdev to read. */
  readonly device: string;
  /** The node to write. */
  readonly target: string;
  readonly sync: 'full' | 'top' | 'none' | 'incremental' | 'bitmap';
  readonly bitmap?: string;
  readonly 'bitmap-mode'?: 'on-success' | 'never' | 'always';
  /** Bytes per second; 0 is unlimited. */
  readonly speed?: number;
  readonly 'auto-finalize'?: boolean;
  readonly 'auto-dismiss'?: boolean;
  readonly 'on-source-error'?: 'report' | 'ignore' | 'enospc' | 'stop' | 'auto';
  readonly 'on-target-error'?: 'report' | 'ignore' | 'enospc' | 'stop' | 'auto';
  readonly 'filter-node-name'?: string;
  readonly 'x-perf'?: {
    readonly 'use-copy-range'?: boolean;
    readonly 'max-workers'?: number;
    readonly 'max-chunk'?: number;
  };
}

export interface BitmapAddArguments {
  readonly node: string;
  readonly name: string;
  /** Bytes, a power of two. */
  readonly granularity?: number;
  readonly persistent?: boolean;
  readonly disabled?: boolean;
}

export interface BitmapReference {
  readonly node: string;
  readonly name: string;
}

export type TransactionAction =
  | { readonly type: 'blockdev-backup'; readonly data: BackupArguments }
  | { readonly type: 'block-dirty-bitmap-add'; readonly data: BitmapAddArguments }
  | { readonly type: 'block-dirty-bitmap-clear'; readonly data: BitmapReference };

export interface TransactionArguments {
  readonly actions: readonly TransactionAction[];
  readonly properties?: { readonly 'completion-mode'?: 'individual' | 'grouped' };
}

/** Bytes or requests per second; 0: no limit. Burst lengths are in seconds. */
export interface ThrottleArguments {
  readonly id: string;
  readonly bps: number;
  readonly bps_rd: number;
  readonly bps_wr: number;
  readonly iops: number;
  readonly iops_rd: number;
  readonly iops_wr: number;
  readonly bps_max?: number;
  readonly bps_max_length?: number;
  readonly iops_max?: number;
  readonly iops_max_length?: number;
}

export interface BlockDeviceInfo {
  readonly qdev?: string;
  readonly inserted?: Pick<ThrottleArguments, 'bps' | 'iops' | 'bps_max' | 'iops_max'>;
}

export interface NbdExportArguments {
  readonly type: 'nbd';
  readonly id: string;
  readonly 'node-name': string;
  readonly name?: string;
  readonly writable?: boolean;
  readonly bitmaps?: readonly (string | BitmapReference)[];
}

type Empty = Record<string, never>;
interface Call<A, R> {
  readonly arguments: A;
  readonly returns: R;
}

/** Every command that {@link QmpClient.execute} accepts. */
export interface QmpCommands {
  qmp_capabilities: Call<{ readonly enable?: readonly string[] }, Empty>;
  'query-version': Call<undefined, { readonly qemu: QemuVersion; readonly package: string }>;
  'query-name': Call<undefined, { readonly name?: string }>;
  'query-status': Call<undefined, StatusInfo>;
  'query-jobs': Call<undefined, readonly JobInfo[]>;
  'query-blockstats': Call<{ readonly 'query-nodes'?: boolean }, readonly BlockStatsInfo[]>;
  'query-named-block-nodes': Call<{ readonly flat?: boolean }, readonly BlockNodeInfo[]>;
  'query-block': Call<undefined, readonly BlockDeviceInfo[]>;
  'query-block-exports': Call<undefined, readonly BlockExportInfo[]>;
  'blockdev-add': Call<BlockdevOptions, Empty>;
  'blockdev-del': Call<{ readonly 'node-name': string }, Empty>;
  block_resize: Call<{ readonly 'node-name': string; readonly size: number }, Empty>;
  'blockdev-reopen': Call<{ readonly options: readonly BlockdevOptions[] }, Empty>;
  'blockdev-backup': Call<BackupArguments, Empty>;
  'nbd-server-start': Call<{ readonly addr: NbdListen; readonly 'max-connections'?: number }, Empty>;
  'nbd-server-stop': Call<undefined, Empty>;
  block_set_io_throttle: Call<ThrottleArguments, Empty>;
  'block-export-add': Call<NbdExportArguments, Empty>;
  'block-dirty-bitmap-add': Call<BitmapAddArguments, Empty>;
  'block-dirty-bitmap-remove': Call<BitmapReference, Empty>;
  'block-dirty-bitmap-clear': Call<BitmapReference, Empty>;
  transaction: Call<TransactionArguments, Empty>;
  'job-finalize': Call<{ readonly id: string }, Empty>;
  'job-cancel': Call<{ readonly id: string }, Empty>;
  'job-dismiss': Call<{ readonly id: string }, Empty>;
  'block-job-set-speed': Call<{ readonly device: string; readonly speed: number }, Empty>;
  system_reset: Call<undefined, Empty>;
  cont: Call<undefined, Empty>;
  stop: Call<undefined, Empty>;
  quit: Call<undefined, Empty>;
  'migrate-set-capabilities': Call<
    { readonly capabilities: readonly { readonly capability: string; readonly state: boolean }[] },
    Empty
  >;
  'migrate-set-parameters': Call<{ readonly 'max-bandwidth'?: number }, Empty>;
  migrate_cancel: Call<undefined, Empty>;
  migrate: Call<{ readonly uri: string }, Empty>;
  'migrate-incoming': Call<{ readonly uri: string }, Empty>;
  'query-migrate': Call<undefined, { readonly status?: string; readonly 'error-desc'?: string }>;
  'human-monitor-command': Call<{ readonly 'command-line': string }, string>;
}
export type QmpCommandName = keyof QmpCommands;
export type QmpArguments<C extends QmpCommandName> = QmpCommands[C]['arguments'];
export type QmpReturn<C extends QmpCommandName> = QmpCommands[C]['returns'];

export interface QemuVersion {
  readonly major: number;
  readonly minor: number;
  readonly micro: number;
}

/** `nbd-server-start` takes a socket address in the older, wrapped form. */
export interface NbdListen {
  readonly type: 'unix';
  readonly data: { readonly path: string };
}

export interface ShutdownData {
  /** The guest asked for it. */
  readonly guest: boolean;
  /** 'guest-shutdown', 'guest-panic', 'host-qmp-quit', 'host-signal', … */
  readonly reason: string;
}

export interface BlockJobEventData {
  readonly type: string;
  readonly device: string;
  readonly len: number;
  readonly offset: number;
  readonly speed: number;
  readonly error?: string;
}

export interface QmpEventData {
  SHUTDOWN: ShutdownData;
  POWERDOWN: undefined;
  RESET: ShutdownData;
  STOP: undefined;
  RESUME: undefined;
  SUSPEND: undefined;
  WAKEUP: undefined;
  GUEST_PANICKED: { readonly action: string; readonly info?: unknown };
  JOB_STATUS_CHANGE: { readonly id: string; readonly status: JobState };
  BLOCK_JOB_PENDING: { readonly type: string; readonly id: string };
  BLOCK_JOB_COMPLETED: BlockJobEventData;
  BLOCK_JOB_CANCELLED: BlockJobEventData;
  BLOCK_JOB_ERROR: { readonly device: string; readonly operation: string; readonly action: string };
  BLOCK_IO_ERROR: {
    readonly device: string;
    readonly 'node-name'?: string;
    readonly operation: 'read' | 'write';
    readonly action: 'ignore' | 'report' | 'stop';
    readonly nospace?: boolean;
    readonly reason: string;
  };
  BLOCK_EXPORT_DELETED: { readonly id: string };
  /** The guest opened or closed a virtio-serial port; `id` is the port's device id. */
  VSERPORT_CHANGE: { readonly id: string; readonly open: boolean };
  MIGRATION: { readonly status: string };
}
export type QmpEventName = keyof QmpEventData;

/** Microseconds since the epoch on the host's clock, as QEMU stamps it. */
export interface QmpTimestamp {
  readonly seconds: number;
  readonly microseconds: number;
}

/** An event, discriminated by `event`. Events with other names are delivered too. */
export type QmpEvent = {
  readonly [N in QmpEventName]: {
    readonly event: N;
    readonly data: QmpEventData[N];
    readonly timestamp: QmpTimestamp;
  };
}[QmpEventName];
