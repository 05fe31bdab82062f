/** How the body of a request is read: JSON, or bytes where a route takes them, and an empty body is no body, with or without Content-Type. */
declare module 'fastify' {
  interface FastifyContextConfig {
    /** The body is bytes, of any type. */
    raw_body?: boolean;
    /** The body is bytes of any type and number, which the handler reads as they come; see {@link registerStreamedBodies}. */
    streamed_body?: boolean;
  }
}

import { isUtf8 } from 'node:buffer';
import type { FastifyInstance } from 'fastify';
import { AppError } from '../../../shared/errors.ts';

export function registerContentTypes(app: FastifyInstance): void {
  app.removeContentTypeParser(['application/json', 'text/plain']);
  app.addContentTypeParser('application/json', { parseAs: 'buffer' }, (request, bytes, done) => {
    if (request.routeOptions.config.raw_body === true) return done(null, bytes);
    if (bytes.length === 0) return done(null, undefined);
    try {
      done(null, parseJson(bytes as Buffer));
    } catch {
      done(new AppError('INVALID_REQUEST', { message: 'The body is not valid JSON.' }), undefined);
    }
  });
  // Clients that send an empty body name various types for it, which we accept. Not on public routes: there a page of
  // another site could send these types, which it cannot do with JSON.
  app.addContentTypeParser('*', { parseAs: 'buffer' }, (request, bytes, done) => {
    if (request.routeOptions.config.raw_body === true) return done(null, bytes);
    const harmless = bytes.length === 0 && request.routeOptions.config.access !== 'public';
    done(harmless || request.is404 ? null : new AppError('UNSUPPORTED_MEDIA_TYPE'), undefined);
  });
  app.addHook('preValidation', (request, _reply, done) => {
    if (request.routeOptions.schema?.body !== undefined) request.body ??= {};
    done();
  });
}

/** On a scope of `app` whose routes have a `streamed_body`. */
export function registerStreamedBodies(scope: FastifyInstance): void {
  scope.removeAllContentTypeParsers();
  scope.addContentTypeParser('*', (_request, body, done) => done(null, body));
}

/** Each letter of `__proto__` as itself or escaped. */
const LETTERS = [...'__proto__'].map((letter) => {
  const code = letter.charCodeAt(0).toString(16).replace('f', '[fF]');
  return `(?:${letter}|\\\\u00${code})`;
});
/** That key. A reviver would find it, too, at sixty times the cost of parsing: callers without a credential could hold up everybody. */
const PROTOTYPE_KEY = new RegExp(`"${LETTERS.join('')}"\\s*:`);

/** JSON.parse that refuses keys which reach an object's prototype, and bytes that decode to another text than was sent. */
export function parseJson(bytes: Buffer): unknown {
  if (!isUtf8(bytes)) throw new SyntaxError('not UTF-8');
  const text = bytes.toString('utf8');
  if (PROTOTYPE_KEY.test(text)) throw new SyntaxError('forbidden key');
  return JSON.parse(text);
}
