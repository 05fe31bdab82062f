/**
 * A fetch that waits for the head of an answer for as long as it takes. Node's own gives up after five minutes, and a
 * command in a guest may take ten.
 */
export async function patientFetch(): Promise<typeof globalThis.fetch> {
  const { Agent, fetch } = await import('undici');
  const dispatcher = new Agent({ headersTimeout: 0, bodyTimeout: 0 });
  // The package's types name its own Request and Response, which are the same at run time.
  const patient = (address: string, init: object) => fetch(address, { ...init, dispatcher });
  return patient as unknown as typeof globalThis.fetch;
}
