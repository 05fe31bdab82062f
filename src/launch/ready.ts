/** The line `berth ready at <url>`: when the control plane says so itself. */
import { get as httpGet } from 'node:http';
import { get as httpsGet } from 'node:https';
import { type Config, localOrigin } from '../config/config.ts';
import { pause } from '../lib/backoff.ts';

/** Asks `/readyz` until it is 200, then says so once; false when `ended` aborts before that. */
export async function announceWhenReady(
  config: Config,
  ended: AbortSignal,
  write: (line: string) => void,
): Promise<boolean> {
  const url = `${localOrigin(config)}/readyz`;
  while (!(await answersOk(url))) {
    if (!(await pause(100, ended))) return false;
  }
  if (ended.aborted) return false;
  write(`berth ready at ${config.public_url}\n`);
  return true;
}

function answersOk(url: string): Promise<boolean> {
  return new Promise((resolve) => {
    const options = { agent: false, timeout: 5_000 };
    const answered = (response: { statusCode?: number | undefined; resume(): void }) => {
      response.resume();
      resolve(response.statusCode === 200);
    };
    // Our own server by its address, whose name the certificate need not carry: nothing is sent but the question.
    const request = url.startsWith('https:')
      ? httpsGet(url, { ...options, rejectUnauthorized: false }, answered)
      : httpGet(url, options, answered);
    request.on('timeout', () => request.destroy());
    request.on('error', () => resolve(false));
  });
}
