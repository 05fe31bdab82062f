/**
 * Announces that the start is complete: waits for the control plane, prints `berth ready at <url>` and the addresses of
 * console and log, prints the first administrator's login at the first start, and notifies systemd. A host of a fleet
 * has no API, so it counts as ready once its agent has started.
 */
import { existsSync } from 'node:fs';
import { get as httpGet } from 'node:http';
import { get as httpsGet } from 'node:https';
import { dirname, join, relative, resolve } from 'node:path';
import { type Config, localOrigin } from '../config/config.ts';
import type { Env } from '../config/env.ts';
import { type Paths, pathsIn } from '../config/paths.ts';
import { pause } from '../shared/retry.ts';
import { readFirstLogin } from './data-folder.ts';
import { runCommand } from './run-command.ts';

/**
 * The command to type for Berth on this machine: its name if it is on the PATH, the path in a checkout, or npm's link.
 * @param program a file of this program: source, or built below `dist/` of its package
 * @param search_path as in `PATH`
 */
export function typedAs(program: string, search_path: string, cwd: string): string {
  if (program.endsWith('.ts')) return 'bin/berth';
  const name = 'berth';
  if (search_path.split(':').some((folder) => folder !== '' && existsSync(join(folder, name)))) return name;
  const [modules] = /^.*\/node_modules(?=\/)/.exec(dirname(program)) ?? [];
  const by_npm = modules === undefined ? undefined : join(modules, '.bin', name);
  return by_npm !== undefined && existsSync(by_npm) ? relative(cwd, by_npm) : name;
}

/** Polls `/readyz` until it answers 200; false when `ended` aborts before that. */
export async function announceWhenReady(
  config: Config,
  ended: AbortSignal,
  write: (line: string) => void,
  env: Env = {},
  { log_file = null }: { readonly log_file?: string | null } = {},
): Promise<boolean> {
  if (config.join !== null) {
    write(`berth: this machine is a host of ${config.join.control_plane}\n`);
    await notifySystemd(env);
    return true;
  }
  const paths = pathsIn(config.data_dir);
  const known = existsSync(paths.first_login);
  const url = `${localOrigin(config)}/readyz`;
  while (!(await answersOk(url))) {
    if (!(await pause(100, ended))) return false;
  }
  if (ended.aborted) return false;
  write(`berth ready at ${config.public_url}\n`);
  // Passkeys belong to a name, not to an address.
  write(`berth: web console: ${config.public_url.replace('//127.0.0.1', '//localhost')}\n`);
  if (log_file !== null) write(`berth: its log: ${log_file}. Ctrl-C stops Berth; VMs keep running\n`);
  if (!known) await printFirstLogin(paths, env, write);
  await notifySystemd(env);
  return true;
}

/** In a journal, which others may read, the file's name replaces the password. */
async function printFirstLogin(paths: Paths, env: Env, write: (line: string) => void): Promise<void> {
  const login = await readFirstLogin(paths);
  if (login === undefined) return;
  const password =
    env['JOURNAL_STREAM'] === undefined
      ? `${login.password}, shown this once; it is kept in ${paths.first_login}`
      : `in ${paths.first_login}`;
  write(`berth: first administrator: ${login.email}, password: ${password}\n`);
  const command = typedAs(import.meta.filename, env['PATH'] ?? '', process.cwd());
  write(`berth: next, in another terminal: ${folderFor(paths, env)}${command} up first\n`);
}

/** `berth` looks for the server in its usual folders; another one has to be named. */
function folderFor({ data }: Paths, env: Env): string {
  const usual = [resolve('data'), '/var/lib/berth'];
  return env['BERTH_DATA_DIR'] === undefined || usual.includes(resolve(data))
    ? ''
    : `BERTH_DATA_DIR='${resolve(data)}' `;
}

/** sd_notify(3) by systemd's command, because Node has no datagrams on unix sockets. */
async function notifySystemd(env: Env): Promise<void> {
  if (env['NOTIFY_SOCKET'] === undefined) return;
  await runCommand('systemd-notify', ['--ready', '--status=ready'], { env }).catch(() => undefined);
}

function answersOk(url: string): Promise<boolean> {
  return new Promise((resolve) => {
    const options = { agent: false, timeout: 5_000 };
    const answered = (response: { statusCode?: number | undefined; resume(): void }) => {
      response.resume();
      resolve(response.statusCode === 200);
    };
    // Our own server, by its address, which the certificate need not contain. The request holds no secret.
    const request = url.startsWith('https:')
      ? httpsGet(url, { ...options, rejectUnauthorized: false }, answered)
      : httpGet(url, options, answered);
    request.on('timeout', () => request.destroy());
    request.on('error', () => resolve(false));
  });
}
