/** WebAuthn in the browser (Web Authentication Level 3, section 5.1): takes the server's options as JSON, and returns the response as JSON. */

/** Why passkeys cannot work on this page, or null. */
export function passkeyProblem(): string | null {
  if (!('PublicKeyCredential' in window) || !isSecureContext) return 'This browser cannot use passkeys here.';
  if (/^[0-9.]+$|^\[/.test(location.hostname)) {
    const there = `${location.protocol}//localhost${location.port === '' ? '' : `:${location.port}`}`;
    return `Passkeys belong to a host name, and this page is open at an address. On this machine, open ${there}.`;
  }
  return null;
}

export async function createPasskey(options: unknown): Promise<unknown> {
  const publicKey = PublicKeyCredential.parseCreationOptionsFromJSON(
    options as PublicKeyCredentialCreationOptionsJSON,
  );
  const made = await asked(() => navigator.credentials.create({ publicKey }));
  return (made as PublicKeyCredential).toJSON();
}

export async function usePasskey(options: unknown): Promise<unknown> {
  const publicKey = PublicKeyCredential.parseRequestOptionsFromJSON(
    options as PublicKeyCredentialRequestOptionsJSON,
  );
  const given = await asked(() => navigator.credentials.get({ publicKey }));
  return (given as PublicKeyCredential).toJSON();
}

async function asked(ask: () => Promise<Credential | null>): Promise<Credential> {
  try {
    const credential = await ask();
    if (credential) return credential;
  } catch (error) {
    const name = error instanceof DOMException ? error.name : '';
    if (name === 'InvalidStateError') throw new Error('This device has a passkey of this account already.');
    if (name !== 'NotAllowedError') throw error;
  }
  throw new Error('No passkey was used: you cancelled, or it took too long.');
}
