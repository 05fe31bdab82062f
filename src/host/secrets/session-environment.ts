/** What new sessions of a guest get: placeholders of secrets, and where the certificates are. Pure. */
import type { SecretForHost } from '../../protocol/secret-types.ts';
import type { SessionEnvironment } from '../keys/authorized-line.ts';

/** apply-secrets.sh puts them there. */
const CERTIFICATE = '/run/berth/secrets-ca.pem';
const ALL_CERTIFICATES = '/run/berth/ca-bundle.pem';

/** None without secrets. */
export function sessionEnvironment(secrets: readonly SecretForHost[] = []): SessionEnvironment {
  if (secrets.length === 0) return [];
  return [
    ...secrets.map(({ name, placeholder }) => `BERTH_SECRET_${name}=${placeholder}`),
    // In addition to those that Node.js has.
    `NODE_EXTRA_CA_CERTS=${CERTIFICATE}`,
    // In place of those that a program has.
    `REQUESTS_CA_BUNDLE=${ALL_CERTIFICATES}`,
    `SSL_CERT_FILE=${ALL_CERTIFICATES}`,
  ];
}
