/**
 * The control planes that a host or an ingress of a fleet knows, kept for its next start: the one that it was given may be down then.
 * After a replacement of the certificate (ADR 80) only this file has the new one's fingerprint, so it is written as durably as a
 * secret.
 */
import { readFile } from 'node:fs/promises';
import { type Static, Type } from 'typebox';
import type { Paths } from '../config/paths.ts';
import { fits } from '../protocol/check.ts';
import { CONTROL_PLANES_MAX, ControlPlanePlace } from '../protocol/ingress-types.ts';
import type { Log } from '../shared/log.ts';
import { writeSecret } from './data-folder.ts';

type File = Pick<Paths, 'control_planes'>;

/** `given`: the fingerprint in the token with which the list was learned. */
const Kept = Type.Object({
  given: Type.String(),
  known: Type.Array(ControlPlanePlace, { maxItems: CONTROL_PLANES_MAX }),
});

/** Empty when nothing readable is kept, or for a token with another fingerprint: the given one tells them again. */
export async function readControlPlanes(
  { control_planes }: File,
  given: string,
): Promise<readonly ControlPlanePlace[]> {
  try {
    const read: unknown = JSON.parse(await readFile(control_planes, 'utf8'));
    if (!fits(Kept, read)) return [];
    const kept = read as Static<typeof Kept>;
    return kept.given === given ? kept.known : [];
  } catch {
    return [];
  }
}

/** Keeps each list that it gets, one after the other. */
export function keepControlPlanes(
  { control_planes }: File,
  given: string,
  log: Log,
): (known: readonly ControlPlanePlace[]) => void {
  let last = Promise.resolve();
  const write = (known: readonly ControlPlanePlace[]) =>
    writeSecret(control_planes, `${JSON.stringify({ given, known })}\n`);
  return (known) => {
    log.info({ urls: known.map(({ url }) => url) }, 'the control planes that can be used');
    last = last
      .then(() => write(known))
      .catch((error: unknown) => log.warn({ err: error }, 'the list of control planes could not be kept'));
  };
}
