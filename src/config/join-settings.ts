/** The settings of a machine that joins a fleet, as a host or as an ingress. */
import type { Reader } from './reader.ts';
import { parseHttpsOrigin } from './settings.ts';

export interface JoinConfig {
  readonly control_plane: string;
  readonly token_path: string;
}

export interface Joins {
  readonly join: JoinConfig | null;
  readonly ingress_join: JoinConfig | null;
}

export function readJoins(reader: Reader, path: (text: string) => string): Joins {
  const control_plane = reader.read('BERTH_CONTROL_PLANE', parseHttpsOrigin, null);
  const joinWith = (token_path: string | null): JoinConfig | null =>
    control_plane === null || token_path === null ? null : { control_plane, token_path };
  const [host, ingress] = ['BERTH_HOST_TOKEN_FILE', 'BERTH_INGRESS_TOKEN_FILE'] as const;
  const given = [host, ingress].filter((name) => reader.text(name) !== null);
  if (reader.text('BERTH_CONTROL_PLANE') === null) {
    for (const name of given)
      reader.problems.push(`BERTH_CONTROL_PLANE is missing; ${name} is set, and needs it`);
  } else if (given.length === 0) {
    reader.problems.push(
      `${host} is missing; BERTH_CONTROL_PLANE is set, and a host of a fleet needs both (an ingress needs ${ingress})`,
    );
  }
  return {
    join: joinWith(reader.read(host, path, null)),
    ingress_join: joinWith(reader.read(ingress, path, null)),
  };
}
