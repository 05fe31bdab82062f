/** The settings that a server tells without a login (`/settings.json`). */
const ANSWER_MS = 15_000;

export interface PublicSettings {
  readonly signups: 'open' | 'closed' | null;
  /** `files`: it has no mail server, and mails become files that only its operator can read. Null: not known. */
  readonly mail: 'smtp' | 'files' | null;
}

const UNKNOWN: PublicSettings = { signups: null, mail: null };

/** Never fails. */
export async function readSettings(url: string): Promise<PublicSettings> {
  try {
    const signal = AbortSignal.timeout(ANSWER_MS);
    const answer = await fetch(`${url}/settings.json`, { signal, redirect: 'error' });
    if (!answer.ok) return UNKNOWN;
    return { ...UNKNOWN, ...((await answer.json()) as Partial<PublicSettings>) };
  } catch {
    return UNKNOWN;
  }
}
