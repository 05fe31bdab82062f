/**
 * Writes the results into bench/README.md, where each benchmark has a table between two comment lines. A run of a
 * benchmark replaces its table, and leaves the tables of the others.
 */
import { execFile } from 'node:child_process';
import { readFile, writeFile } from 'node:fs/promises';
import { cpus, loadavg, totalmem } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { AIMS, isReached } from './aims.ts';
import { type Measured, spread } from './figure.ts';

const BEGIN = '<!-- results: written by npm run bench -->';
const END = '<!-- end of results -->';
/** A run with fewer rounds is not recorded. */
export const MIN_RUNS = 3;

export interface BenchTable {
  readonly name: string;
  /** The date, the commit and the machine. */
  readonly about: string;
  readonly rows: readonly Measured[];
}

function tableOf({ name, about, rows }: BenchTable): string {
  const lines = rows.map(({ figure: f, values, beside_values }) => {
    const aim = AIMS[`${f.bench}/${f.figure}`];
    const judged = aim
      ? `${aim.of} at ${aim.at} ${aim.limit}: ${isReached(aim, f) ? 'reached' : '**missed**'}`
      : '';
    return [
      `\`${f.bench}/${f.figure}\``,
      `${f.value} ${f.unit} (${spread(values)})`,
      `${f.beside}: ${f.beside_value} (${spread(beside_values)})`,
      f.ratio.toFixed(2),
      judged,
    ];
  });
  return [
    `### ${name}\n\n${about}\n`,
    ...[['figure', 'Berth', 'beside', 'ratio', 'aim'], Array(5).fill('---'), ...lines].map(
      (cells) => `| ${cells.join(' | ')} |`,
    ),
  ].join('\n');
}

/** The text of the README with the benchmark's table in the place of its last one, in the order of `names`. */
export function withTable(readme: string, table: BenchTable, names: readonly string[]): string {
  const begin = readme.indexOf(BEGIN);
  const end = readme.indexOf(END);
  if (begin < 0 || end < begin) throw new Error(`bench/README.md has no lines "${BEGIN}" and "${END}"`);
  const tables = new Map<string, string>();
  for (const text of readme.slice(begin + BEGIN.length, end).split(/^(?=### )/m)) {
    const name = /^### (.+)$/m.exec(text)?.[1];
    if (name !== undefined) tables.set(name, text.trim());
  }
  tables.set(table.name, tableOf(table));
  const ordered = names.flatMap((name) => tables.get(name) ?? []);
  return `${readme.slice(0, begin)}${BEGIN}\n\n${ordered.join('\n\n')}\n\n${readme.slice(end)}`;
}

export async function writeResults(
  project_dir: string,
  table: BenchTable,
  names: readonly string[],
): Promise<void> {
  const path = join(project_dir, 'bench', 'README.md');
  await writeFile(path, withTable(await readFile(path, 'utf8'), table, names));
}

/** Call it before the first benchmark: the load average shows whether the machine was idle. */
export async function describeRun(project_dir: string, accel: string, runs: number): Promise<string> {
  const git = (...args: string[]) =>
    promisify(execFile)('git', args, { cwd: project_dir }).then(
      ({ stdout }) => stdout.trim(),
      () => null,
    );
  const commit = await git('rev-parse', '--short', 'HEAD');
  const changed = await git('status', '--porcelain', '--', 'src', 'guest', 'bench/*.ts', 'package-lock.json');
  const machine = `${cpus().length} cores, ${Math.round(totalmem() / 2 ** 30)} GiB, ${accel}`;
  const state = `${commit ?? 'no commit'}${changed ? ' and changes' : ''}`;
  const date = new Date().toISOString().slice(0, 10);
  return `${date}, ${state}, ${machine}, load average ${loadavg()[0]?.toFixed(1)} before, ${runs} rounds.`;
}
