/** Writes the generated part of docs/cli.md. */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { reference } from './help.ts';

const PATH = join(import.meta.dirname, '..', '..', 'docs', 'cli.md');
const MARK = '<!-- written from src/cli/command-table.ts -->\n\n';

const [head = ''] = readFileSync(PATH, 'utf8').split(MARK);
writeFileSync(PATH, head + MARK + reference());
