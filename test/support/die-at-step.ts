/** Preloaded: kills its process just before its nth call that changes the file system (BERTH_TEST_DIE_AT). */
import { promises } from 'node:fs';
import { open } from 'node:fs/promises';
import { syncBuiltinESMExports } from 'node:module';

const CHANGES = ['rename', 'rm', 'mkdir', 'copyFile', 'chown', 'chmod', 'writeFile', 'unlink'];
const OF_HANDLES = ['sync', 'datasync', 'writeFile', 'write'];

let left = Number(process.env['BERTH_TEST_DIE_AT']);

type Calls = Record<string, (...args: unknown[]) => unknown>;

function watch(object: object, names: readonly string[]): void {
  const calls = object as Calls;
  for (const name of names) {
    const real = calls[name];
    if (!real) throw new Error(`${name} is no call`);
    calls[name] = function (this: unknown, ...args: unknown[]) {
      left -= 1;
      if (left === 0) process.kill(process.pid, 'SIGKILL');
      return real.apply(this, args);
    };
  }
}

const handle = await open('/dev/null', 'r');
watch(Object.getPrototypeOf(handle), OF_HANDLES);
await handle.close();
watch(promises, CHANGES);
syncBuiltinESMExports();
