/**
 * Serves `/docs`, the documentation site that `site/build.ts` builds, and `/docs/api`, the API reference.
 *
 * - Only files of the site that existed when this server started are served. They are read anew for each request. A
 *   browser that already has a page of this build gets 304.
 * - The reference is rendered at the first request, and kept in memory with its compressed forms.
 */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { extname, join, relative } from 'node:path';
import { promisify } from 'node:util';
import { brotliCompress, constants, gzip } from 'node:zlib';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { AppContext } from '../context.ts';
import { DOCS_PREFIX } from '../http/server.ts';
import { type EncodedFile, type Encoding, encodingFor, sendEncoded, TOKENS } from './encoded-file.ts';
import { referencePage } from './reference.ts';

const REFERENCE = `${DOCS_PREFIX}/api`;

/** Beside each page's text, the site has: search and copying by its script, images, and the search's index. */
const SITE_POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self'",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
  "require-trusted-types-for 'script'",
  "trusted-types 'none'",
].join('; ');
const SITE_HEADERS = {
  'content-security-policy': SITE_POLICY,
  'cross-origin-opener-policy': 'same-origin',
  'cross-origin-resource-policy': 'same-origin',
};
/** The rest is text: copies of files that a page links to. */
const TYPES: Readonly<Record<string, string>> = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.svg': 'image/svg+xml',
  '.png': 'image/png',
  '.json': 'application/json; charset=utf-8',
};
const TEXT = 'text/plain; charset=utf-8';
const START = 'index.html';
const NO_PAGE = '404.html';

const REFERENCE_POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  'img-src data:',
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
  "require-trusted-types-for 'script'",
  "trusted-types 'none'",
].join('; ');

const REFERENCE_HEADERS = {
  'content-security-policy': REFERENCE_POLICY,
  'cross-origin-opener-policy': 'same-origin',
  'cross-origin-resource-policy': 'same-origin',
  'cache-control': 'no-cache',
};
/** Higher levels take seconds for 2 % less. */
const BROTLI = { params: { [constants.BROTLI_PARAM_QUALITY]: 5 } };

type Context = Pick<AppContext, 'public_url' | 'console_dir' | 'site_dir'>;

/** Script and style come with the console's files; without them the page is whole, but plain. */
export function registerDocs(app: FastifyInstance, { public_url, console_dir, site_dir }: Context): void {
  const assets = console_dir === undefined ? [] : namesIn(join(console_dir, 'assets'));
  let made: Promise<EncodedFile> | undefined;
  const show = async (request: FastifyRequest, reply: FastifyReply) => {
    made ??= encoded(
      referencePage({
        document: app.apiDocument(),
        origin: public_url,
        script: assetPath(assets, /^reference-\w+\.js$/),
        style: assetPath(assets, /^reference-\w+\.css$/),
      }),
    );
    return sendEncoded(await made, request, reply.headers(REFERENCE_HEADERS));
  };
  const options = { schema: { hide: true }, exposeHeadRoute: true } as const;
  app.get(REFERENCE, options, show);
  if (registerSite(app, DOCS_PREFIX, site_dir)) return;
  app.log.warn({ site_dir }, 'the documentation is not built. Run npm start, which builds it');
  for (const path of [DOCS_PREFIX, `${DOCS_PREFIX}/`])
    app.get(path, options, (_, reply) => reply.redirect(REFERENCE));
}

function namesIn(folder: string): readonly string[] {
  return existsSync(folder) ? readdirSync(folder) : [];
}

function assetPath(names: readonly string[], pattern: RegExp): string | null {
  const name = names.find((each) => pattern.test(each));
  return name === undefined ? null : `/assets/${name}`;
}

async function encoded(page: string): Promise<EncodedFile> {
  const plain = Buffer.from(page);
  const [br, gz] = await Promise.all([promisify(brotliCompress)(plain, BROTLI), promisify(gzip)(plain)]);
  return { type: 'text/html; charset=utf-8', plain, encoded: { br, gz } };
}

interface Site {
  readonly folder: string;
  /** Of all that the site was built from: every answer's ETag. */
  readonly etag: string;
  readonly names: ReadonlySet<string>;
}

/** @param folder `site/dist` @returns false where it has not been built: then `/docs` leads to the API reference */
function registerSite(app: FastifyInstance, prefix: string, folder: string | undefined): boolean {
  const site = folder === undefined ? null : readSite(folder);
  if (site === null) return false;
  const options = { schema: { hide: true }, exposeHeadRoute: true } as const;
  for (const path of [prefix, `${prefix}/`])
    app.get(path, options, (request, reply) => send(site, START, request, reply));
  app.get<{ Params: { '*': string } }>(`${prefix}/*`, options, (request, reply) => {
    const path = request.params['*'];
    const name = site.names.has(`${path}.html`) ? `${path}.html` : path;
    if (site.names.has(name) && !name.endsWith(NO_PAGE)) return send(site, name, request, reply);
    // A program gets the API's error.
    if (!(request.headers.accept ?? '').includes('text/html')) return reply.callNotFound();
    return send(site, NO_PAGE, request, reply.status(404));
  });
  return true;
}

function readSite(folder: string): Site | null {
  const stamp = join(folder, 'stamp');
  if (!existsSync(stamp)) return null;
  const names = readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && entry.name !== 'stamp')
    .map((entry) => relative(folder, join(entry.parentPath, entry.name)));
  return { folder, etag: `W/"${readFileSync(stamp, 'utf8').slice(0, 16)}"`, names: new Set(names) };
}

async function send(
  { folder, etag, names }: Site,
  name: string,
  request: FastifyRequest,
  reply: FastifyReply,
): Promise<FastifyReply> {
  const for_ever = name.startsWith('assets/');
  reply
    .headers(SITE_HEADERS)
    .header('cache-control', for_ever ? 'public, max-age=31536000, immutable' : 'no-cache')
    .header('vary', 'Accept-Encoding')
    .header('etag', etag)
    .type(TYPES[extname(name)] ?? TEXT);
  if (reply.statusCode === 200 && request.headers['if-none-match'] === etag) return reply.status(304).send();
  const encoding = encodingFor(request, (each: Encoding) => names.has(`${name}.${each}`));
  if (encoding === undefined) return reply.send(await readFile(join(folder, name)));
  return reply
    .header('content-encoding', TOKENS[encoding])
    .send(await readFile(join(folder, `${name}.${encoding}`)));
}
