/** Alerts and dashboard: Prometheus reads them, each alert fires in a test of its own, and each metric that they name exists. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { promisify } from 'node:util';
import { openPool } from '../../src/control-plane/db/pool.ts';
import { HostCalls, HostSilence } from '../../src/control-plane/fleet/host-calls.ts';
import { noOthers } from '../../src/control-plane/fleet/peers.ts';
import { createMetricsApp, RequestMetrics } from '../../src/control-plane/monitoring/metrics.ts';
import { createLog } from '../../src/shared/log.ts';
import { skipWithout } from '../support/program.ts';

const run = promisify(execFile);
const DEPLOY = join(import.meta.dirname, '..', '..', 'deploy');
const textOf = (path: string) => readFile(join(DEPLOY, path), 'utf8');
const PROMTOOL = skipWithout('promtool', 'prometheus');
/** Of Prometheus itself and its node exporter. */
const OF_PROMETHEUS = ['node_filesystem_avail_bytes', 'node_filesystem_size_bytes'];

interface Panel {
  readonly id: number;
  readonly title: string;
  readonly gridPos: { readonly x: number; readonly y: number; readonly w: number; readonly h: number };
  readonly targets: readonly { readonly expr: string }[];
}
const dashboard = JSON.parse(await textOf('grafana/dashboard.json')) as { readonly panels: readonly Panel[] };

test('Prometheus accepts the alerts and the configuration', PROMTOOL, async () => {
  await run('promtool', ['check', 'config', join(DEPLOY, 'prometheus', 'prometheus.yml')]);
});

test('each alert fires when it should, and a healthy fleet raises none', PROMTOOL, async () => {
  await run('promtool', ['test', 'rules', join(DEPLOY, 'prometheus', 'alerts.test.yml')]);
});

test('each alert has a test, a severity, a summary and what to do', async () => {
  const alerts = (await textOf('prometheus/alerts.yml')).split(/^ {6}- alert: /m).slice(1);
  assert.ok(alerts.length > 10);
  const tested = await textOf('prometheus/alerts.test.yml');
  for (const alert of alerts) {
    const name = /^\w+/.exec(alert)?.[0] ?? '';
    assert.match(tested, new RegExp(`alertname="${name}"`));
    for (const part of [/severity: (?:critical|warning)\}/, /^ {10}summary: \S/m, /^ {10}description: \S/m]) {
      assert.match(alert, part, name);
    }
  }
});

test('each metric in alerts and dashboard is one that a control plane exposes', async () => {
  const exposed = await exposedNames();
  const alerts = [...(await textOf('prometheus/alerts.yml')).matchAll(/^ +(?:expr: |\/ |sum|node_).*$/gm)];
  const expressions = [
    ...alerts.map(([line]) => line),
    ...dashboard.panels.flatMap(({ targets }) => targets.map(({ expr }) => expr)),
  ];
  const named = new Set(
    expressions.flatMap((text) => text.match(/\b(?:berth|process|nodejs|node)_[a-z_]+\b/g) ?? []),
  );
  assert.ok(named.size > 20);
  assert.deepEqual(
    [...named].filter((name) => !exposed.has(name) && !OF_PROMETHEUS.includes(name)),
    [],
  );
});

test('Prometheus can parse each expression of the dashboard', PROMTOOL, async () => {
  const rules = dashboard.panels.flatMap(({ id, targets }) =>
    targets.map(({ expr }, i) => ({
      record: `panel:${id}:${i}`,
      expr: expr.replaceAll('$__rate_interval', '1m'),
    })),
  );
  const folder = await mkdtemp(join(tmpdir(), 'berth-dashboard-'));
  try {
    const path = join(folder, 'rules.yml');
    // JSON is YAML.
    await writeFile(path, JSON.stringify({ groups: [{ name: 'dashboard', rules }] }));
    const { stdout } = await run('promtool', ['check', 'rules', path]);
    assert.match(stdout, new RegExp(`SUCCESS: ${rules.length} rules found`));
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
});

test('no two panels of the dashboard overlap, or have one id', () => {
  const { panels } = dashboard;
  assert.equal(new Set(panels.map(({ id }) => id)).size, panels.length);
  const cells = panels.flatMap(({ gridPos: { x, y, w, h } }) =>
    Array.from({ length: w * h }, (_, i) => `${x + (i % w)},${y + Math.floor(i / w)}`),
  );
  assert.equal(new Set(cells).size, cells.length);
});

/** With the names of a histogram's series. */
async function exposedNames(): Promise<ReadonlySet<string>> {
  const metrics = new RequestMetrics();
  // Nothing is scraped, so the pool opens no connection.
  const db = openPool('postgres://127.0.0.1:1/none', () => undefined);
  await createMetricsApp(metrics, {
    ...{ log: createLog('test', 'silent'), db, host_calls: new HostCalls(noOthers(), new HostSilence(db)) },
    ...{ public_url: 'http://127.0.0.1', hosts: [], tls: null },
  }).close();
  await db.destroy();
  return new Set(
    metrics.registry
      .getMetricsAsArray()
      .flatMap(({ name }) => [name, `${name}_bucket`, `${name}_count`, `${name}_sum`]),
  );
}
