/**
 * Opens URLs in the user's browser (`openBrowser`), and asks the user to confirm a login there instead of typing a
 * password (`askInBrowser`, ADR 52). The browser that confirms may be on another machine: it opens the printed URL.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as pause } from 'node:timers/promises';
import { type Answer, type Berth, BerthConnectionError, BerthError } from '../../client/src/berth.ts';
import type { Env } from '../config/env.ts';
import { CommandError, EXIT } from './command-error.ts';
import type { Terminal } from './terminal.ts';

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

/** The server forgets the login after ten minutes. This ends the wait for a server that no longer answers. */
const PATIENCE_MS = 660_000;
const NOT_YET: readonly string[] = ['CONFLICT', 'RATE_LIMITED', 'UNAVAILABLE'];

/** @param berth a client without a credential @throws CommandError if the user refuses, or does not answer */
export async function askInBrowser(
  berth: Berth,
  env: Env,
  terminal: Terminal,
  sudo: boolean,
): Promise<Answer<'takeDeviceLogin'>> {
  const asked = await berth.call('askForDeviceLogin', { body: { sudo } });
  terminal.warn(
    `Open ${asked.url}\nand confirm within ten minutes, if it shows the code ${asked.user_code}.`,
  );
  if (terminal.interactive) await openBrowser(env, asked.url);
  const progress = terminal.progress('waiting for your browser');
  try {
    return await answerTo(berth, asked);
  } finally {
    progress.end();
  }
}

async function answerTo(berth: Berth, { device_code, interval_seconds }: Answer<'askForDeviceLogin'>) {
  const until_ms = performance.now() + PATIENCE_MS;
  for (;;) {
    await pause(interval_seconds * 1_000);
    try {
      return await berth.call('takeDeviceLogin', { body: { device_code } });
    } catch (error) {
      const goes_on = performance.now() < until_ms && waits(error);
      if (!goes_on) throw error instanceof BerthError && error.status === 401 ? refused(error) : error;
    }
  }
}

function waits(error: unknown): boolean {
  if (error instanceof BerthConnectionError) return true;
  return error instanceof BerthError && NOT_YET.includes(error.code);
}

function refused({ message }: BerthError): CommandError {
  return new CommandError(message, { next: 'the same again', exit_code: EXIT.not_authorised });
}
