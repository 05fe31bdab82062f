/** Connections over TLS that trust exactly one certificate, and no authority. */
import type { TLSSocket } from 'node:tls';
import { buildConnector } from 'undici';

/** A control plane that cannot be reached costs no more before another one is tried. */
export const CONNECT_MS = 3_000;

export function pinnedConnector(fingerprint: string): buildConnector.connector {
  const connect = buildConnector({
    rejectUnauthorized: false,
    maxCachedSessions: 0,
    minVersion: 'TLSv1.3',
    timeout: CONNECT_MS,
  });
  return (options, callback) =>
    connect(options, (...[error, socket]) => {
      if (error) return callback(error, null);
      if ((socket as TLSSocket).getPeerX509Certificate?.()?.fingerprint256 === fingerprint) {
        return callback(null, socket);
      }
      socket.destroy();
      callback(new Error('the certificate of the control plane is not the one in the join token'), null);
    });
}
