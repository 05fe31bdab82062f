/**
 * Asks the user to confirm a login in a browser, on this or another machine, and waits for it: for accounts without a password
 * (ADR 77).
 */
import { setTimeout as pause } from 'node:timers/promises';
import { type Answer, type Berth, BerthConnectionError, BerthError } from '../../client/src/berth.ts';
import type { Env } from '../config/env.ts';
import { openBrowser } from './browser.ts';
import { CommandError } from './command-error.ts';
import { EXIT } from './exit-codes.ts';
import type { Terminal } from './terminal.ts';

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
