/** Without an endpoint no process loads OpenTelemetry, but for the interface that prom-client loads to find a tracer. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { test } from 'node:test';
import { promisify } from 'node:util';
import { importsOf } from '../house/imports.ts';

const SOURCES = join(import.meta.dirname, '..', '..', 'src');
const FILES = [
  'launcher/roles/control-plane.ts',
  'launcher/roles/agent.ts',
  'launcher/roles/ingress.ts',
  'launcher/start.ts',
];

/** Which of OpenTelemetry's modules a process loads that imports these files of `src`. */
async function loadedBy(files: readonly string[]): Promise<string[]> {
  const paths = files.map((file) => JSON.stringify(join(SOURCES, file)));
  const script = `
    import { registerHooks } from 'node:module';
    const loaded = new Set();
    registerHooks({
      resolve(specifier, context, next) {
        const by_prom_client = context.parentURL?.includes('/node_modules/prom-client/');
        if (specifier.startsWith('@opentelemetry/') && !by_prom_client) loaded.add(specifier);
        return next(specifier, context);
      },
    });
    for (const path of [${paths.join(', ')}]) await import(path);
    process.stdout.write(JSON.stringify([...loaded]));
    process.exit(0);`;
  const { stdout } = await promisify(execFile)(process.execPath, ['--input-type=module', '-e', script]);
  return JSON.parse(stdout) as string[];
}

test('the roles and the launcher load none; main.ts loads what does only when an endpoint is set', async () => {
  assert.deepEqual(await loadedBy(FILES), []);
  const [sending] = importsOf('src/main.ts').filter(({ to }) => to.endsWith('send-traces.ts'));
  assert.deepEqual([sending?.to, sending?.lazy], ['src/launcher/send-traces.ts', true]);
  assert.notDeepEqual(await loadedBy(['launcher/send-traces.ts']), []);
});
