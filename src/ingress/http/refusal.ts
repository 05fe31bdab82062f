/**
 * Defines the error responses that the ingress sends in place of a guest's response: JSON, or an HTML page for a
 * browser. Each says what the client can do.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { newRequestId } from '../../shared/ids.ts';

export class Refusal extends Error {
  override name = 'Refusal';
  readonly status: number;
  readonly code: string;
  readonly request_id = newRequestId();
  readonly headers: Readonly<Record<string, string>>;

  constructor(status: number, code: string, message: string, headers: Record<string, string> = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.headers = headers;
  }
}

/** Unknown hostname, deleted port, deleted instance: the same for all. */
export function notFound(): Refusal {
  return new Refusal(404, 'NOT_FOUND', 'There is no HTTP port at this address. Check the URL: berth port ls');
}

export function ambiguous(problem: string): Refusal {
  return new Refusal(400, 'INVALID_REQUEST', `The request was not passed on: ${problem}.`, {
    connection: 'close',
  });
}

/** Bytes that are no request; `code`: of Node's error. */
export function unreadable(code: string | undefined): Refusal {
  const connection = { connection: 'close' };
  if (code === 'HPE_HEADER_OVERFLOW')
    return new Refusal(431, 'INVALID_REQUEST', 'The header fields of the request are too large.', connection);
  if (code === 'ERR_HTTP_REQUEST_TIMEOUT')
    return new Refusal(
      408,
      'INVALID_REQUEST',
      'The header fields of the request did not come in time.',
      connection,
    );
  return new Refusal(400, 'INVALID_REQUEST', 'This is not a request by HTTP.', connection);
}

export function badGateway(message: string): Refusal {
  return new Refusal(502, 'BAD_GATEWAY', message);
}

export function unavailable(message: string): Refusal {
  return new Refusal(503, 'UNAVAILABLE', message, { 'retry-after': '5' });
}

export function unauthenticated(): Refusal {
  const message =
    'This port is private. Open it from the console, with berth port open, or send Authorization: Bearer with an API key.';
  return new Refusal(401, 'UNAUTHENTICATED', message, { 'www-authenticate': 'Bearer realm="berth"' });
}

export interface RenderedRefusal {
  readonly status: number;
  readonly headers: Record<string, string>;
  readonly body: string;
}

export function render(refusal: Refusal, accept: string | undefined): RenderedRefusal {
  const as_page = /\btext\/html\b/i.test(accept ?? '');
  const body = as_page ? page(refusal) : `${JSON.stringify(bodyOf(refusal))}\n`;
  return {
    status: refusal.status,
    headers: {
      'content-type': as_page ? 'text/html; charset=utf-8' : 'application/json; charset=utf-8',
      'content-length': String(Buffer.byteLength(body)),
      'cache-control': 'no-store',
      'content-security-policy': "default-src 'none'; style-src 'unsafe-inline'",
      'x-content-type-options': 'nosniff',
      'x-request-id': refusal.request_id,
      ...refusal.headers,
    },
    body,
  };
}

/** Nothing if the answer has begun. */
export function sendRefusal(
  response: ServerResponse,
  refusal: Refusal,
  { method, headers: asked, httpVersion }: IncomingMessage,
): void {
  if (response.headersSent || response.destroyed) return;
  const { status, headers, body } = render(refusal, asked.accept);
  if (httpVersion === '2.0') delete headers['connection'];
  response.writeHead(status, headers);
  if (method === 'HEAD') response.end();
  else response.end(body);
}

function bodyOf({ code, message, request_id }: Refusal) {
  return { error: { code, message, request_id } };
}

const TITLES: Readonly<Record<number, string>> = {
  400: 'Bad request',
  401: 'This port is private',
  403: 'No access',
  404: 'Not found',
  405: 'Method not allowed',
  408: 'Request timeout',
  431: 'Header fields too large',
  502: 'The VM gave no answer',
  503: 'Not available now',
};

function page({ status, message, request_id }: Refusal): string {
  const title = TITLES[status] ?? 'Error';
  return `<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>${title}</title>
<style>:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:36rem;margin:15vh auto;padding:0 1.5rem}
h1{font-size:1.4rem}small{opacity:.65}</style>
<h1>${title}</h1><p>${escaped(message)}</p><small>${status} · Berth · ${request_id}</small></html>
`;
}

function escaped(text: string): string {
  const names: Record<string, string> = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' };
  return text.replace(/[&<>"]/g, (found) => names[found] ?? '');
}
