/** A fetch without a timeout for headers. Node's fetch gives up after five minutes, and a guest command may take ten. */
export async function fetchWithoutTimeout(): Promise<typeof globalThis.fetch> {
  const { Agent, fetch } = await import('undici');
  const dispatcher = new Agent({ headersTimeout: 0, bodyTimeout: 0 });
  // The package declares its own Request and Response types, which are the same at run time.
  const waiting = (address: string, init: object) => fetch(address, { ...init, dispatcher });
  return waiting as unknown as typeof globalThis.fetch;
}
