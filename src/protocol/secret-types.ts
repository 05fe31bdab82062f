/** The secrets of a VM, as its host uses them. The guest gets the placeholders only. */
import { anyText, listOf, matching, named, type Of } from './schemas.ts';

export const SECRETS_MAX = 50;
export const SECRET_HOSTS_MAX = 20;
export const SECRET_VALUE_MAX_BYTES = 65_536;

/** Kept in memory only; never written to a file or a log. */
export const SecretForHost = named('SecretForHost', {
  name: matching('^[A-Z][A-Z0-9_]*$', 64),
  /** What the guest has in `BERTH_SECRET_<name>`. */
  placeholder: matching('^berth-secret-[0-9a-f]{32}$', 45),
  /** Exact names, or `*.` and a domain. In lower case. */
  hosts: listOf(matching('^(\\*\\.)?[a-z0-9.-]+$', 255), SECRET_HOSTS_MAX),
  /** Replaces the placeholder in headers of HTTPS requests to `hosts`. */
  value: anyText(SECRET_VALUE_MAX_BYTES),
});
export type SecretForHost = Of<typeof SecretForHost>;

/** The instance's certificate authority for intercepted connections, in PEM. Kept in memory only. */
export const SecretsAuthority = named('SecretsAuthority', {
  certificate: anyText(4_096),
  private_key: anyText(4_096),
});
export type SecretsAuthority = Of<typeof SecretsAuthority>;
