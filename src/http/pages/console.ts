/**
 * The web console's files, as `console/build.ts` has made them: read once, held in memory with their compressed forms.
 *
 * - The page may load scripts and styles of its own files alone, may talk to this server alone, and runs nothing that
 *   stands in its text. It is the same for everybody: who is logged in shows only in what its script asks the API for.
 * - Files named by their content are kept by browsers for ever, the page itself is asked for anew each time.
 */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { extname, join } from 'node:path';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';

/** First parts of the paths that the console shows; beside them, what is below each. */
export const CONSOLE_PAGES = [
  ...(['login', 'register', 'invitation', 'password-reset', 'email'] as const),
  ...([
    'instances',
    'ssh-keys',
    'api-keys',
    'webhooks',
    'notifications',
    'organisation',
    'audit',
    'account',
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
  // No text becomes markup or code, and no script may make an exception (Trusted Types).
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
const ENCODINGS = ['br', 'gz'] as const;
const TOKENS = { br: 'br', gz: 'gzip' } as const;

interface ConsoleFile {
  readonly type: string;
  readonly plain: Buffer;
  readonly encoded: Readonly<Record<(typeof ENCODINGS)[number], Buffer>>;
}

function readFile(path: string): ConsoleFile {
  const [br, gz] = ENCODINGS.map((ending) => readFileSync(`${path}.${ending}`)) as [Buffer, Buffer];
  return {
    type: TYPES[extname(path)] ?? 'application/octet-stream',
    plain: readFileSync(path),
    encoded: { br, gz },
  };
}

/** By name; nothing where the console has not been built. */
function readAssets(folder: string): ReadonlyMap<string, ConsoleFile> {
  const names = readdirSync(folder).filter((name) => extname(name) in TYPES);
  return new Map(names.map((name) => [name, readFile(join(folder, name))]));
}

function send(file: ConsoleFile, request: FastifyRequest, reply: FastifyReply): FastifyReply {
  const accepted = String(request.headers['accept-encoding'] ?? '')
    .split(',')
    .map((each) => each.split(';')[0]?.trim());
  const encoding = ENCODINGS.find((each) => accepted.includes(TOKENS[each]));
  reply.type(file.type).header('vary', 'Accept-Encoding');
  if (encoding === undefined) return reply.send(file.plain);
  return reply.header('content-encoding', TOKENS[encoding]).send(file.encoded[encoding]);
}

/** @param folder `console/dist`; without built files in it nothing is served */
export function registerConsole(app: FastifyInstance, folder: string): void {
  const index = join(folder, 'index.html');
  if (!existsSync(index)) {
    app.log.warn({ folder }, 'the web console is not built; npm start builds it');
    return;
  }
  const page = readFile(index);
  const assets = readAssets(join(folder, 'assets'));
  const options = { schema: { hide: true } } as const;
  const showPage = (request: FastifyRequest, reply: FastifyReply) =>
    send(page, request, reply.headers(PAGE_HEADERS).header('cache-control', 'no-cache'));
  for (const path of ['', ...CONSOLE_PAGES]) {
    app.get(`/${path}`, options, showPage);
    if (path !== '') app.get(`/${path}/*`, options, showPage);
  }
  app.get<{ Params: { name: string } }>('/assets/:name', options, (request, reply) => {
    const file = assets.get(request.params.name);
    if (!file) return reply.callNotFound();
    reply.headers(PAGE_HEADERS).header('cache-control', 'public, max-age=31536000, immutable');
    return send(file, request, reply);
  });
}
