import type { FastifyRequest } from 'fastify';
import { AppError } from '../lib/errors.ts';

/**
 * Refuses what a page of another site has sent: where a cookie is set or believed, `Sec-Fetch-Site` (Fetch Metadata)
 * or `Origin` (RFC 6454), if there, must be our own. @throws AppError FORBIDDEN
 */
export function refuseForeignSite(request: FastifyRequest, public_url: string): void {
  const site = request.headers['sec-fetch-site'];
  if (site !== undefined && site !== 'same-origin' && site !== 'none') throw foreign();
  const { origin } = request.headers;
  if (origin === undefined) return;
  const own = [public_url, `${request.protocol}://${request.headers.host ?? ''}`];
  if (!own.includes(origin)) throw foreign();
}

function foreign(): AppError {
  return new AppError('FORBIDDEN', { message: 'A page of another site may not do that.' });
}
