/**
 * Serves the web console, which `console/build.ts` builds. Its files are read once, and held in memory with their
 * compressed forms.
 *
 * - The page loads scripts and styles from its own files only, connects to this server only, and runs no inline script.
 *   It is the same for every user; its script reads the user's data from the API.
 * - Browsers cache the assets for ever, because their names contain a hash. They revalidate the page each time.
 * - `/settings.json` has what the page needs to know before a login.
 */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { extname, join } from 'node:path';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { AppError } from '../../shared/errors.ts';
import type { AppContext } from '../context.ts';
import { sendError } from '../http/errors.ts';
import { type EncodedFile, sendEncoded } from './encoded-file.ts';

/** First segments of the console's paths; each also serves every path below it. */
export const CONSOLE_PAGES = [
  ...(['login', 'register', 'invitation', 'password-reset', 'email', 'device'] as const),
  ...([
    'instances',
    'usage',
    'ssh-keys',
    'api-keys',
    'webhooks',
    'notifications',
    'organisation',
    'audit',
    'account',
    'operator',
  ] as const),
] as const;

export const CONSOLE_SECURITY_POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self' data:",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
  // No script can turn text into markup or code (Trusted Types).
  "require-trusted-types-for 'script'",
  "trusted-types 'none'",
].join('; ');

const PAGE_HEADERS = {
  'content-security-policy': CONSOLE_SECURITY_POLICY,
  'cross-origin-opener-policy': 'same-origin',
  'cross-origin-resource-policy': 'same-origin',
  'permissions-policy':
    'camera=(), geolocation=(), microphone=(), payment=(), usb=(), publickey-credentials-get=(self), publickey-credentials-create=(self)',
};
const TYPES: Readonly<Record<string, string>> = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.svg': 'image/svg+xml',
};
function readFile(path: string): EncodedFile {
  return {
    type: TYPES[extname(path)] ?? 'application/octet-stream',
    plain: readFileSync(path),
    encoded: { br: readFileSync(`${path}.br`), gz: readFileSync(`${path}.gz`) },
  };
}

/** By name. */
function readAssets(folder: string): ReadonlyMap<string, EncodedFile> {
  const names = readdirSync(folder).filter((name) => extname(name) in TYPES);
  return new Map(names.map((name) => [name, readFile(join(folder, name))]));
}

/** Paths of programs. The rest are people's, in a browser. */
const OF_PROGRAMS = /^\/(v1|assets|internal|openapi|docs|metrics|healthz|readyz)\b|\.\w+$/;

/** Whether a browser shows the answer to a person. Programs, also those that accept everything, get the API's errors. */
function isForPerson({ method, url, headers }: FastifyRequest): boolean {
  const path = url.split('?')[0] ?? '';
  return method === 'GET' && !OF_PROGRAMS.test(path) && (headers.accept ?? '').includes('text/html');
}

/**
 * Also answers unknown paths: with a page to a browser, with an error to a program.
 *
 * @param folder `console/dist` @returns false where it has not been built: then nothing is served
 */
export function registerConsole(app: FastifyInstance, folder: string): boolean {
  const index = join(folder, 'index.html');
  if (!existsSync(index)) {
    app.log.warn({ folder }, 'the web console is not built. Run npm start, which builds it');
    return false;
  }
  const page = readFile(index);
  const assets = readAssets(join(folder, 'assets'));
  const options = { schema: { hide: true } } as const;
  const showPage = (request: FastifyRequest, reply: FastifyReply) =>
    sendEncoded(page, request, reply.headers(PAGE_HEADERS).header('cache-control', 'no-cache'));
  for (const path of ['', ...CONSOLE_PAGES]) {
    app.get(`/${path}`, options, showPage);
    if (path !== '') app.get(`/${path}/*`, options, showPage);
  }
  app.setNotFoundHandler((request, reply) => {
    if (!isForPerson(request)) return sendError(new AppError('NOT_FOUND'), request, reply);
    // The page's script says that there is no such page.
    return showPage(request, reply.status(404));
  });
  app.get<{ Params: { name: string } }>('/assets/:name', options, (request, reply) => {
    const file = assets.get(request.params.name);
    if (!file) return reply.callNotFound();
    reply.headers(PAGE_HEADERS).header('cache-control', 'public, max-age=31536000, immutable');
    return sendEncoded(file, request, reply);
  });
  return true;
}

// `/settings.json`: the settings of this server that the console and `berth doctor` need before a login. No secrets.

const SETTINGS_PATH = '/settings.json';

export function registerSettings(
  app: FastifyInstance,
  {
    signups,
    has_smtp,
    oidc,
    password_login,
    public_url,
  }: Pick<AppContext, 'signups' | 'has_smtp' | 'oidc' | 'password_login' | 'public_url'>,
): void {
  // `files`: mails become files in the data folder, which only the operator can read.
  const settings = {
    signups,
    mail: has_smtp ? 'smtp' : 'files',
    password_login: password_login ? 'on' : 'off',
    // At the public URL, where the provider sends the browser back.
    oidc: oidc && { name: oidc.provider.name, login_url: `${public_url}/v1/auth/oidc/login` },
  };
  app.get(SETTINGS_PATH, { schema: { hide: true } }, (_request, reply) =>
    reply.header('cache-control', 'no-cache').send(settings),
  );
}
