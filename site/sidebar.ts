/**
 * Defines the order of the documentation: what a newcomer needs comes first. A page that is missing here is shown at
 * the end, under "More", and `test/house/documentation-site.test.ts` fails.
 */
import type { Page } from './pages.ts';

interface Part {
  readonly title: string;
  /** The words of the link, and a document, or an address of this server. */
  readonly entries: readonly (readonly [string, string])[];
}

export const SIDEBAR: readonly Part[] = [
  {
    title: 'Start',
    entries: [
      ['What Berth is', 'docs/README.md'],
      ['Tutorial', 'docs/tutorial.md'],
      ['Install', 'docs/install.md'],
      ['What persists', 'docs/persistence.md'],
      ['Comparison', 'docs/comparison.md'],
    ],
  },
  {
    title: 'Use',
    entries: [
      ['Guides by task', 'docs/guides.md'],
      ['Web console', 'docs/console.md'],
      ['HTTP ports', 'docs/publishing.md'],
      ['Secrets', 'docs/secrets.md'],
      ['Images', 'docs/images.md'],
      ['Webhooks', 'docs/webhooks.md'],
      ['Notifications', 'docs/notifications.md'],
      ['API with curl', 'docs/curl.md'],
      ['Clients', 'docs/client.md'],
      ['Files', 'docs/files.md'],
      ['Tools for models', 'docs/mcp.md'],
      ['Programs for E2B', 'docs/e2b.md'],
    ],
  },
  {
    title: 'Examples',
    entries: [
      ['All examples', 'examples/README.md'],
      ["An agent's sandbox", 'examples/agent-sandbox/README.md'],
      ['A preview of each branch', 'examples/preview-per-branch/README.md'],
      ['A CI runner that sleeps', 'examples/ci-runner/README.md'],
      ['A notebook server', 'examples/notebook/README.md'],
    ],
  },
  {
    title: 'Look up',
    entries: [
      ['Commands', 'docs/cli.md'],
      ['API reference', '/docs/api'],
      ['Permissions', 'docs/permissions.md'],
      ['Errors', 'docs/errors.md'],
      ['Glossary', 'docs/glossary.md'],
      ['Changes', 'CHANGELOG.md'],
    ],
  },
  {
    title: 'Operate',
    entries: [
      ['Run a server', 'docs/operating.md'],
      ['Settings', 'docs/settings.md'],
      ['OpenID Connect', 'docs/sign-in.md'],
      ['Backups', 'docs/backup.md'],
      ['Install a fleet', 'docs/operating/install.md'],
      ['Upgrade a fleet', 'docs/operating/upgrade.md'],
      ['A lost database', 'docs/operating/lost-database.md'],
      ['Rotation', 'docs/operating/rotation.md'],
      ['Capacity', 'docs/operating/capacity.md'],
      ['Several hosts', 'docs/fleet.md'],
      ['Hosts', 'docs/operating/hosts.md'],
      ['PostgreSQL', 'docs/operating/postgresql.md'],
      ['Security', 'SECURITY.md'],
    ],
  },
  {
    title: 'How it works',
    entries: [
      ['Promises and proofs', 'SPECIFICATION.md'],
      ['Architecture', 'ARCHITECTURE.md'],
      ['What a crash does', 'docs/crash-table.md'],
      ['What ends a stream', 'docs/streams.md'],
      ['Disk format', 'docs/disk-format.md'],
      ['Guest image', 'guest/README.md'],
      ['Bounds', 'docs/bounds.md'],
      ['OWASP ASVS', 'docs/asvs.md'],
      ['Benchmarks', 'bench/README.md'],
      ['Measurements', 'docs/measurements/README.md'],
      ['Decisions', 'docs/adr/README.md'],
      ['Developing', 'docs/developing/README.md'],
      ['Contributing', 'CONTRIBUTING.md'],
    ],
  },
];

/** Their README.md lists them. */
const LISTED_BY_ANOTHER = /^docs\/(?:adr|developing|measurements)\/(?!README\.md)/;

export function missingIn(pages: readonly Page[]): Page[] {
  const named = new Set(SIDEBAR.flatMap(({ entries }) => entries.map(([, target]) => target)));
  return pages.filter(({ file }) => !named.has(file) && !LISTED_BY_ANOTHER.test(file));
}

/** With the pages that are in no other part. */
export function sidebarOf(pages: readonly Page[]): readonly Part[] {
  const more = missingIn(pages).map(({ title, file }) => [title, file] as const);
  return more.length === 0 ? SIDEBAR : [...SIDEBAR, { title: 'More', entries: more }];
}
