/** `berth certificate …`, which runs on the server of a control plane; and reads which certificate a join token pins. */
import { transaction } from '../control-plane/db/pool.ts';
import {
  findCertificates,
  type KeptCertificates,
  listLive,
} from '../control-plane/fleet/control-plane-store.ts';
import {
  fingerprintOf,
  hostsCertificate,
  renewCertificate,
  TOLD_SECONDS,
} from '../control-plane/fleet/hosts-certificate.ts';
import { CommandError } from './command-error.ts';
import { EXIT } from './exit-codes.ts';
import { noteOperator, type ServerContext } from './server-context.ts';
import { table } from './table.ts';

/** Makes the certificate that replaces the one that hosts pin. */
export async function renewHostsCertificate(server: ServerContext): Promise<string> {
  const { db, root_key } = server;
  if ((await findCertificates(db)).present === null)
    throw new CommandError('there is no certificate to replace: no control plane has listened to hosts yet', {
      next: 'set BERTH_HOSTS_LISTEN, and start a control plane',
      exit_code: EXIT.state,
    });
  if ((await listLive(db)).length === 0)
    throw new CommandError('no control plane runs that could tell hosts of a new certificate', {
      next: 'start one, with BERTH_HOSTS_URL if it listens to hosts on every address',
      exit_code: EXIT.state,
    });
  const is_made = await transaction(db, async (tx) => {
    const made = await renewCertificate(tx, root_key);
    if (made) await noteOperator(tx, server, 'certificate.renew', 'certificate');
    return made;
  });
  if (!is_made)
    throw new CommandError('a new certificate is made already', {
      next: 'berth certificate show',
      exit_code: EXIT.state,
    });
  return 'A new certificate is made. Control planes tell hosts and ingresses of it now.\nNext: in a minute, restart the control planes one after the other. When the last one shows it, the old one is forgotten. See berth certificate show.\n';
}

/** Which control plane shows which certificate, and what is left of a replacement. */
export async function showHostsCertificate({ db }: ServerContext): Promise<string> {
  const kept = await findCertificates(db);
  const live = await listLive(db);
  if (live.length === 0) return 'No control plane runs that hosts on other machines could reach.\n';
  const rows = live.map(({ url, fingerprint }) => [url, nameOf(kept, fingerprint)]);
  return `${progressOf(kept)}\n${table(['CONTROL PLANE', 'SHOWS'], rows)}`;
}

function nameOf({ present, next }: KeptCertificates, fingerprint: string): string {
  const is = (each: { readonly certificate: string } | null) =>
    each !== null && fingerprintOf(each.certificate) === fingerprint;
  if (is(next)) return 'the new certificate';
  if (!is(present)) return 'a replaced certificate: restart it';
  return next === null ? 'the certificate' : 'the old certificate';
}

function progressOf({ next }: KeptCertificates): string {
  if (next === null) return 'The certificate that hosts and ingresses know is not being replaced.';
  const left = Math.ceil(TOLD_SECONDS - next.told_seconds);
  return left > 0
    ? `A new certificate is made. Hosts and ingresses are told of it for another ${left} s; control planes that start before that show the old one.`
    : 'A new certificate is made. Restart the control planes that show the old one, one after the other.';
}

/** PEM; what a new host or ingress pins: while there is a new one, that. */
export async function pinnedCertificate({ config, db, root_key }: ServerContext): Promise<string> {
  if (config.hosts_listen === null)
    throw new CommandError(
      'BERTH_HOSTS_LISTEN is not set: set it to the address at which other machines reach this one',
    );
  const { next } = await findCertificates(db);
  return next ? next.certificate : (await hostsCertificate(db, root_key)).cert;
}
