/**
 * `/docs`: the documentation site. `/docs/api`: the API reference as a page of this server, made at the first request and kept
 * with its compressed forms.
 */
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { brotliCompress, constants, gzip } from 'node:zlib';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { AppContext } from '../context.ts';
import { registerDocsSite } from './docs-site.ts';
import { type EncodedFile, sendEncoded } from './encoded-file.ts';
import { referencePage } from './reference/reference-page.ts';

export const DOCS_PREFIX = '/docs';
const REFERENCE = `${DOCS_PREFIX}/api`;

const SECURITY_POLICY = [
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

const HEADERS = {
  'content-security-policy': SECURITY_POLICY,
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
    return sendEncoded(await made, request, reply.headers(HEADERS));
  };
  const options = { schema: { hide: true }, exposeHeadRoute: true } as const;
  app.get(REFERENCE, options, show);
  if (registerDocsSite(app, DOCS_PREFIX, site_dir)) return;
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
