/**
 * The manifests against Kubernetes' own schemas, which kubernetes-models has as validators (values) and as types. The validators
 * accept unknown fields, as Kubernetes' schemas do; the types refuse them.
 */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { promisify } from 'node:util';
import * as apps from 'kubernetes-models/apps/v1';
import * as batch from 'kubernetes-models/batch/v1';
import * as policy from 'kubernetes-models/policy/v1';
import * as core from 'kubernetes-models/v1';
import { parseAllDocuments } from 'yaml';
import { SETTINGS } from '../../src/config/settings.ts';

const run = promisify(execFile);
const PROJECT = join(import.meta.dirname, '..', '..');
const FOLDER = join(PROJECT, 'deploy', 'kubernetes');
const GROUPS: Record<string, object> = { v1: core, 'apps/v1': apps, 'batch/v1': batch, 'policy/v1': policy };

interface Container {
  readonly image: string;
  readonly command: readonly string[];
  readonly env?: readonly { readonly name: string; readonly value?: string }[];
}
interface Manifest {
  readonly apiVersion: string;
  readonly kind: string;
  readonly metadata: { readonly name: string };
  readonly data?: Record<string, string>;
  readonly spec?: {
    /** Of a Service: the labels themselves. */
    readonly selector?: Record<string, unknown>;
    readonly template?: {
      readonly metadata: { readonly labels: Record<string, string> };
      readonly spec: { readonly containers: readonly Container[] };
    };
  };
}

async function readManifests(): Promise<Manifest[]> {
  const manifests: Manifest[] = [];
  for (const name of (await readdir(FOLDER)).filter((each) => each.endsWith('.yaml'))) {
    for (const document of parseAllDocuments(await readFile(join(FOLDER, name), 'utf8'))) {
      assert.deepEqual(document.errors, [], name);
      manifests.push(document.toJS() as Manifest);
    }
  }
  return manifests;
}
const manifests = await readManifests();
const containers = manifests.flatMap(({ spec }) => spec?.template?.spec.containers ?? []);

test("Kubernetes' schemas accept each manifest", () => {
  assert.ok(manifests.length >= 10);
  for (const manifest of manifests) {
    const { apiVersion, kind } = manifest;
    const models = GROUPS[apiVersion] as
      | Record<string, new (data: object) => { validate(): void }>
      | undefined;
    const Model = models?.[kind];
    assert.ok(Model, `${apiVersion} ${kind}`);
    new Model(manifest).validate();
  }
});

test('no manifest has a field that Kubernetes does not know', async () => {
  assert.equal(await typeErrors(manifests), '');
  const [deployment] = manifests.filter(({ kind }) => kind === 'Deployment');
  const wrong = JSON.parse(JSON.stringify(deployment).replace('"readinessProbe"', '"readynessProbe"'));
  assert.match(await typeErrors([wrong]), /readynessProbe/);
});

/** What the compiler finds in them as values of Kubernetes' types; empty: nothing. */
async function typeErrors(checked: readonly Manifest[]): Promise<string> {
  const cache = join(PROJECT, '.cache');
  await mkdir(cache, { recursive: true });
  // Inside the project, so that the compiler finds the types.
  const folder = await mkdtemp(join(cache, 'manifests-'));
  try {
    const lines = checked.map(({ apiVersion, kind, ...manifest }, i) => {
      const type = `import('kubernetes-models/${apiVersion}').I${kind}`;
      const value = JSON.stringify({ apiVersion, kind, ...manifest });
      return `export const m${i}: ${type} = ${value};`;
    });
    const path = join(folder, 'manifests.ts');
    await writeFile(path, lines.join('\n'));
    const options = ['--ignoreConfig', '--noEmit', '--skipLibCheck', '--strict', '--module', 'nodenext'];
    const tsc = join(PROJECT, 'node_modules', '.bin', 'tsc');
    return await run(tsc, [...options, path], { cwd: folder }).then(
      ({ stdout }) => stdout,
      (error: { readonly stdout: string }) => error.stdout,
    );
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

test('each image has a version, and each command is one of Berth', () => {
  assert.ok(containers.length >= 4);
  for (const { image, command } of containers) {
    assert.match(image, /:\d+\.\d+\.\d+$/);
    assert.equal(command[0], 'berth');
  }
});

test('each setting exists, and none is a secret', () => {
  const settings = [
    ...containers.flatMap(({ env = [] }) => env.map(({ name }) => name)),
    ...manifests.flatMap(({ data = {} }) => Object.keys(data)),
  ].filter((name) => !['POD_IP', 'POD_NAME', 'NODE_NAME'].includes(name));
  const unknown = settings.filter((name) => !(SETTINGS as readonly string[]).includes(name));
  // Settings of roles of a fleet.
  const of_roles = ['BERTH_HOSTS_URL', 'BERTH_INGRESS_TOKEN_FILE', 'BERTH_SSH_LISTEN'];
  assert.deepEqual(
    unknown.filter((name) => !of_roles.includes(name)),
    [],
  );
  const secret = ['DATABASE_URL', 'BERTH_SECRET_KEY', 'BERTH_ADMIN_PASSWORD', 'BERTH_SMTP_URL'];
  assert.deepEqual(
    settings.filter((name) => secret.includes(name) || name.startsWith('AWS_')),
    [],
  );
});

test('each service and each disruption budget selects pods that a manifest makes', () => {
  const pods = manifests.flatMap(({ spec }) => (spec?.template ? [spec.template.metadata.labels] : []));
  const selecting = manifests.filter(({ kind }) => ['Service', 'PodDisruptionBudget'].includes(kind));
  assert.ok(selecting.length >= 5);
  for (const { kind, metadata, spec } of selecting) {
    const selector =
      kind === 'Service' ? spec?.selector : (spec?.selector?.['matchLabels'] as object | undefined);
    const wanted = Object.entries(selector ?? {});
    assert.ok(wanted.length > 0);
    const fits = pods.filter((labels) => wanted.every(([name, value]) => labels[name] === value));
    assert.equal(fits.length, 1, `${kind} ${metadata.name}`);
  }
});
