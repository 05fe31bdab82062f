/** The settings that a server tells without a login (`/settings.json`). */
const ANSWER_MS = 15_000;

export interface PublicSettings {
  readonly signups: 'open' | 'closed' | null;
  /** `files`: it has no mail server, and mails become files that only its operator can read. Null: not known. */
  readonly mail: 'smtp' | 'files' | null;
  /** `off`: people log in at the OpenID provider only. */
  readonly password_login: 'on' | 'off' | null;
  /** The OpenID provider; null: there is none, or it is not known. */
  readonly oidc: { readonly name: string } | null;
}

export const UNKNOWN_SETTINGS: PublicSettings = {
  signups: null,
  mail: null,
  password_login: null,
  oidc: null,
};

/** Never fails. */
export async function readSettings(url: string): Promise<PublicSettings> {
  try {
    const signal = AbortSignal.timeout(ANSWER_MS);
    const answer = await fetch(`${url}/settings.json`, { signal, redirect: 'error' });
    if (!answer.ok) return UNKNOWN_SETTINGS;
    return { ...UNKNOWN_SETTINGS, ...((await answer.json()) as Partial<PublicSettings>) };
  } catch {
    return UNKNOWN_SETTINGS;
  }
}
