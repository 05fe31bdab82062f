/**
 * What happened in a fleet: one event a line of JSON, in the order in which it was seen. The checker reads nothing else.
 */
import { appendFileSync } from 'node:fs';

/** A guest has booted, and says what its disk holds: the newest record, and a problem of it, or `ok`. */
export interface Boot {
  readonly kind: 'boot';
  readonly at_ms: number;
  readonly instance: string;
  /** Of the VM, as the host's record of it says. */
  readonly epoch: number;
  readonly boot_id: string;
  readonly newest: number;
  readonly state: string;
}

/** A guest has written and fsynced a record. */
export interface Written {
  readonly kind: 'record';
  readonly at_ms: number;
  readonly instance: string;
  readonly epoch: number;
  readonly boot_id: string;
  readonly number: number;
}

/** A guest has seen an error, or content that it has not written. */
export interface GuestError {
  readonly kind: 'guest error';
  readonly at_ms: number;
  readonly instance: string;
  readonly what: string;
}

export type Verb =
  | 'create'
  | 'start'
  | 'stop'
  | 'suspend'
  | 'flush'
  | 'fork'
  | 'delete'
  | 'drain'
  | 'uncordon';

/** `unknown`: no answer came. `wrong`: an answer that no caller should get. */
export type Outcome = 'ok' | 'refused' | 'unknown' | 'wrong';

/** A call of the API, or a command of the operator, which has ended. */
export interface Call {
  readonly kind: 'call';
  readonly began_ms: number;
  readonly at_ms: number;
  readonly verb: Verb;
  readonly at: string;
  readonly instance: string;
  readonly outcome: Outcome;
  readonly what: string;
  /** Of a flush: the generation of its receipt. */
  readonly generation?: number;
  /** Of a stop or a suspend that is over: the VM's boot. */
  readonly boot?: number;
  /** Of a fork: the instance that it has made. */
  readonly made?: string;
}

/**
 * Where the instance has processes: `host:pid` of those that run, and of those that are paused: by SIGSTOP, or for good because
 * their memory is saved. Told at each change.
 */
export interface Processes {
  readonly kind: 'processes';
  readonly at_ms: number;
  readonly instance: string;
  readonly running: readonly string[];
  readonly paused: readonly string[];
}

export interface Struck {
  readonly kind: 'fault' | 'healed';
  readonly at_ms: number;
  readonly what: string;
}

/** A fault that loses a host has begun, and no other fault acts. `instances`: those that ran there. */
export interface Lost {
  readonly kind: 'lost';
  readonly at_ms: number;
  readonly host: string;
  readonly instances: readonly string[];
}

/** The database was restored to a copy. Rows of the database before that come before it. */
export interface Restored {
  readonly kind: 'restored';
  readonly at_ms: number;
  readonly copied_ms: number;
}

/** A host has got an empty disk. */
export interface NewDisk {
  readonly kind: 'new disk';
  readonly at_ms: number;
  readonly host: string;
}

/** An event of the instance says that writes or saved memory were lost. */
export interface ReportedLoss {
  readonly kind: 'loss';
  readonly at_ms: number;
  readonly id: string;
  readonly instance: string;
}

/** What did not come back in time after everything was healed. */
export interface Stuck {
  readonly kind: 'stuck';
  readonly at_ms: number;
  readonly what: string;
}

/** Rows of the database, read by psql. */
export interface VmRow {
  readonly kind: 'vm';
  readonly instance: string;
  readonly boot: number;
  readonly epoch: number;
  readonly host: string;
}
export interface GenerationRow {
  readonly kind: 'generation';
  readonly instance: string;
  readonly generation: number;
  readonly parent: number | null;
  readonly epoch: number;
}
/** The head of a disk, and the newest record in it as an independent reader of the objects finds it. */
export interface Head {
  readonly kind: 'head';
  readonly at_ms: number;
  readonly instance: string;
  readonly generation: number;
  readonly newest: number;
}

export type Event =
  | Boot
  | Written
  | GuestError
  | Call
  | Processes
  | Struck
  | Lost
  | Restored
  | NewDisk
  | ReportedLoss
  | Stuck
  | VmRow
  | GenerationRow
  | Head;

export class History {
  readonly events: Event[] = [];
  readonly path: string;

  constructor(path: string) {
    this.path = path;
  }

  add(event: Event): void {
    this.events.push(event);
    appendFileSync(this.path, `${JSON.stringify(event)}\n`);
  }
}
