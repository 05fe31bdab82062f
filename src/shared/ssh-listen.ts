/** Where an ingress listens for the SSH addresses of each host name (`BERTH_SSH_LISTEN`). */
export interface SshListen {
  /** For every name; null: see `by_name`. */
  readonly every: string | null;
  /** The names that are served, each with its address; null: every name, at the address that it resolves to. */
  readonly by_name: ReadonlyMap<string, string> | null;
}

export const LISTEN_AT_NAMES: SshListen = { every: null, by_name: null };

/** Null: the name is not served here. */
export function listenAddress({ every, by_name }: SshListen, name: string): string | null {
  if (every !== null) return every;
  return by_name === null ? name : (by_name.get(name) ?? null);
}
