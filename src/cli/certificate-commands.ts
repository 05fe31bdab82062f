/** `berth certificate renew`, on the server; and the certificate that a token names. */
import { fingerprintOf, hostsCertificate, renewCertificate } from '../control-planes/hosts-certificate.ts';
import { findCertificates } from '../control-planes/installation-store.ts';
import { listLive } from '../control-planes/store.ts';
import { transaction } from '../db/pool.ts';
import { CommandError } from './command-error.ts';
import { EXIT } from './exit-codes.ts';
import { noteOperator, type ServerContext } from './server-context.ts';

const NEXT =
  'Next: in a minute, restart the control planes one after the other. When the last one shows the new certificate, the old one is forgotten. Until then no host or ingress can be added.\n';

/** Makes the certificate that replaces the one that hosts pin. Repeated, it says how far that is. */
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
  if (is_made) return `A new certificate is made. Hosts and ingresses learn of it within a minute.\n${NEXT}`;
  return `A new certificate is made already. ${await progress(server)}\n${NEXT}`;
}

async function progress({ db }: ServerContext): Promise<string> {
  const { next } = await findCertificates(db);
  const fingerprint = next && fingerprintOf(next.certificate);
  const live = await listLive(db);
  const old = live.filter((each) => each.fingerprint !== fingerprint).map(({ url }) => url);
  return old.length === 0
    ? 'No control plane that runs shows the old one.'
    : `These control planes show the old one: ${old.join(', ')}.`;
}

/** PEM; what a new host or ingress pins. @throws CommandError while it is being replaced */
export async function pinnedCertificate({ config, db, root_key }: ServerContext): Promise<string> {
  if (config.hosts_listen === null)
    throw new CommandError(
      'BERTH_HOSTS_LISTEN is not set: set it to the address at which other machines reach this one',
    );
  if ((await findCertificates(db)).next !== null)
    throw new CommandError('the certificate that hosts and ingresses pin is being replaced', {
      next: 'berth certificate renew says what is left to do',
      exit_code: EXIT.state,
    });
  return (await hostsCertificate(db, root_key)).cert;
}
