/** Leads this tab to an HTTP port. A private one takes a ticket of this session, which works once. */
import { useEffect } from 'preact/hooks';
import { BerthError, type Instance } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { Loaded, PageHead } from '../ui/page.tsx';
import { useQuery } from '../use-query.ts';

export function OpenPort({ instance, port_id }: { readonly instance: Instance; readonly port_id: string }) {
  const query = useQuery(`open ${port_id}`, () => urlOf(instance.id, port_id));
  const { data: url } = query;
  useEffect(() => {
    // The ticket stays out of the history.
    if (url !== undefined) location.replace(url);
  }, [url]);
  return (
    <>
      <PageHead title={`Opening a port of ${instance.name}`} />
      <Loaded query={query}>{(found) => <p class="hint">Opening {new URL(found).host} …</p>}</Loaded>
    </>
  );
}

async function urlOf(id: string, port_id: string): Promise<string> {
  const path = { id, port_id };
  try {
    return (await call('openPort', { path })).url;
  } catch (error) {
    // A public port takes no ticket.
    if (!(error instanceof BerthError) || error.code !== 'CONFLICT') throw error;
    return (await call('getPort', { path })).url;
  }
}
