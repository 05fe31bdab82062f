/** Opens a URL in the user's browser, where there is one. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import type { Env } from '../config/env.ts';

/** False: this machine has no browser, or no screen; or it is no web address, for which a desktop starts any program. */
export async function openBrowser(env: Env, url: string): Promise<boolean> {
  if (!/^https?:$/.test(URL.parse(url)?.protocol ?? '')) return false;
  const command = programOf(env);
  if (command === null) return false;
  const child = spawn(command, [url], { stdio: 'ignore', detached: true });
  const started = await Promise.race([
    once(child, 'spawn').then(
      () => true,
      () => false,
    ),
    once(child, 'error').then(() => false),
  ]);
  child.on('error', () => undefined);
  child.unref();
  return started;
}

function programOf(env: Env): string | null {
  const own = env['BROWSER'];
  if (own !== undefined && /^[\w./-]+$/.test(own)) return own;
  if (process.platform === 'darwin') return 'open';
  return env['DISPLAY'] || env['WAYLAND_DISPLAY'] ? 'xdg-open' : null;
}
