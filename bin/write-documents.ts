/**
 * Generates documents from the code: some as a whole, of others the part between two comments. `npm run documents`
 * writes them. test/house/generated-documents.test.ts fails if a committed document differs.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { decisionsText } from '../site/decisions.ts';
import { reference } from '../src/cli/help.ts';
import { settingsText } from '../src/config/settings-reference.ts';
import { boundsText } from '../src/control-plane/bounds-reference.ts';
import { errorsText } from '../src/control-plane/error-reference.ts';
import { KINDS, type KindFacts } from '../src/control-plane/notifications/model.ts';
import { permissionsText } from '../src/control-plane/permissions-reference.ts';
import { TOOLS } from '../src/mcp/mcp-server.ts';
import { markdownTable } from '../src/shared/markdown-table.ts';

const PROJECT = join(import.meta.dirname, '..');
const MAIL = { always: 'always', on: 'yes', elsewhere: 'another' } as const;

export interface GeneratedDocument {
  /** From the project's folder. */
  readonly path: string;
  readonly text: string;
}

export async function generatedDocuments(): Promise<GeneratedDocument[]> {
  return [
    { path: 'docs/settings.md', text: settingsText() },
    { path: 'docs/errors.md', text: errorsText() },
    { path: 'docs/bounds.md', text: boundsText() },
    { path: 'docs/permissions.md', text: await permissionsText() },
    { path: 'docs/adr/README.md', text: decisionsText() },
    withPart('docs/cli.md', 'src/cli/command-table.ts', reference()),
    withPart('docs/mcp.md', 'src/mcp/mcp-server.ts', toolTable()),
    withPart('docs/notifications.md', 'src/control-plane/notifications/model.ts', kindTable()),
  ];
}

/** The document as it is, with that part written anew. */
function withPart(path: string, source: string, part: string): GeneratedDocument {
  const begin = `<!-- written from ${source} -->\n`;
  const end = '<!-- end -->\n';
  const document = readFileSync(join(PROJECT, path), 'utf8');
  const [before = '', rest = ''] = document.split(begin);
  const after = rest.split(end)[1];
  if (after === undefined) throw new Error(`${path} has no part that is written from ${source}`);
  return { path, text: `${before}${begin}\n${part.trim()}\n\n${end}${after}` };
}

function toolTable(): string {
  const rows = TOOLS.map(({ name, title, needs, hints }) => {
    const marks = [
      ...(hints.readOnlyHint ? ['reads'] : []),
      ...(hints.destructiveHint ? ['destroys'] : []),
      ...(hints.idempotentHint ? ['repeatable'] : []),
      ...(hints.openWorldHint ? ['open world'] : []),
    ];
    return [`\`${name}\``, title, needs.replaceAll(/\w+:\w+/g, '`$&`'), marks.join(', ')];
  });
  return markdownTable(['tool', 'title', 'also needs', 'marks'], rows);
}

function kindTable(): string {
  const rows = Object.entries<KindFacts>(KINDS).map(([kind, { severity, when, recipients, mail }]) => [
    `\`${kind}\``,
    severity,
    when,
    recipients,
    MAIL[mail],
  ]);
  return markdownTable(['kind', 'severity', 'when', 'recipients', 'mail'], rows);
}

if (import.meta.main) {
  for (const { path, text } of await generatedDocuments()) writeFileSync(join(PROJECT, path), text);
}
