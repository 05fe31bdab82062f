/**
 * Records the plans of the statements that a database executes, as PostgreSQL's auto_explain reports them, and finds
 * those that read too much. So tests judge the statements that the product sends, and not a copy of them.
 */
import { Kysely, PostgresDialect } from 'kysely';
import pg from 'pg';
import { connectionOptions } from '../../src/control-plane/db/connect.ts';
import type { Db } from '../../src/control-plane/db/pool.ts';
import type { Database } from '../../src/control-plane/db/tables.ts';
import { queryOnce } from './database.ts';

interface PlanNode {
  readonly 'Node Type': string;
  readonly 'Relation Name'?: string;
  readonly 'Index Name'?: string;
  readonly 'Actual Rows': number;
  readonly 'Actual Loops': number;
  readonly 'Rows Removed by Filter'?: number;
  readonly 'Rows Removed by Index Recheck'?: number;
  readonly 'Rows Removed by Join Filter'?: number;
  readonly 'Shared Hit Blocks'?: number;
  readonly 'Shared Read Blocks'?: number;
  readonly Plans?: readonly PlanNode[];
}

export interface Executed {
  readonly text: string;
  readonly plan: PlanNode;
}

const REPORTS_PLANS: Readonly<Record<string, string>> = {
  session_preload_libraries: 'auto_explain',
  'auto_explain.log_min_duration': '0',
  'auto_explain.log_analyze': 'on',
  'auto_explain.log_buffers': 'on',
  'auto_explain.log_timing': 'off',
  // Those of foreign keys, too.
  'auto_explain.log_nested_statements': 'on',
  'auto_explain.log_format': 'json',
  'auto_explain.log_level': 'notice',
  log_min_messages: 'panic',
};

/** Whatever connects to the database from now on is told the plans of its statements. */
export async function reportPlans(url: string): Promise<void> {
  const name = new URL(url).pathname.slice(1);
  for (const [setting, value] of Object.entries(REPORTS_PLANS)) {
    await queryOnce(url, `alter database "${name}" set ${setting} = '${value}'`);
  }
}

/** A pool that keeps what its connections are told. */
export class PlanRecorder {
  readonly db: Db;
  #executed: Executed[] = [];

  constructor(url: string) {
    const pool = new pg.Pool({ ...connectionOptions(url), max: 20 });
    // At the end the database is dropped under it.
    pool.on('error', () => undefined);
    pool.on('connect', (client) => {
      client.on('error', () => undefined);
      client.on('notice', ({ message = '' }) => this.#hear(message));
    });
    this.db = new Kysely<Database>({ dialect: new PostgresDialect({ pool }) });
  }

  /** Those since the last call. */
  take(): readonly Executed[] {
    const executed = this.#executed;
    this.#executed = [];
    return executed;
  }

  #hear(message: string): void {
    const at = message.indexOf('plan:\n');
    if (!message.startsWith('duration: ') || at === -1) return;
    const { 'Query Text': text, Plan: plan } = JSON.parse(message.slice(at + 'plan:\n'.length));
    this.#executed.push({ text, plan });
  }
}

export interface Limits {
  /** Rows that one statement reads, including those that it then leaves out. */
  readonly rows: number;
  /** Pages of 8 KiB that it looks at. */
  readonly pages: number;
  /** Rows that it sorts. */
  readonly sorted: number;
  /** Large tables that it may read as a whole. */
  readonly whole: readonly string[];
}

/** Why a statement breaks the limits; empty if it does not. `large`: the tables that are never read as a whole. */
export function problemsOf({ plan }: Executed, limits: Limits, large: ReadonlySet<string>): string[] {
  const found: string[] = [];
  const nodes = flatten(plan);
  for (const { 'Node Type': type, 'Relation Name': table = '' } of nodes) {
    if (type === 'Seq Scan' && large.has(table) && !limits.whole.includes(table))
      found.push(`reads all of ${table}`);
  }
  const rows = sum(nodes.filter(isScan).map(rowsRead));
  if (rows > limits.rows) found.push(`reads ${rows} rows, at most ${limits.rows}`);
  const sorted = sum(nodes.filter((node) => node['Node Type'] === 'Sort').map(rowsGiven));
  if (sorted > limits.sorted) found.push(`sorts ${sorted} rows, at most ${limits.sorted}`);
  const pages = (plan['Shared Hit Blocks'] ?? 0) + (plan['Shared Read Blocks'] ?? 0);
  if (pages > limits.pages) found.push(`looks at ${pages} pages, at most ${limits.pages}`);
  return found;
}

function flatten(node: PlanNode): PlanNode[] {
  return [node, ...(node.Plans ?? []).flatMap(flatten)];
}

function isScan({ 'Relation Name': table, 'Node Type': type }: PlanNode): boolean {
  return table !== undefined && type.endsWith('Scan');
}

function rowsGiven(node: PlanNode): number {
  return node['Actual Rows'] * node['Actual Loops'];
}

function rowsRead(node: PlanNode): number {
  const removed = (node['Rows Removed by Filter'] ?? 0) + (node['Rows Removed by Index Recheck'] ?? 0);
  return (node['Actual Rows'] + removed) * node['Actual Loops'];
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, each) => total + each, 0);
}
