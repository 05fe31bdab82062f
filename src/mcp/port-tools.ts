/** Tools for HTTP ports of a guest. */
import { Type } from 'typebox';
import type { Port } from '../../client/src/berth.ts';
import { pageText } from './instance-tools.ts';
import { ADDS, CURSOR, DESTROYS, fields, INSTANCE, LIMIT, READS, type Tool, tool } from './tool.ts';

const lineOf = ({ id, port, access, url, hostnames }: Port): string =>
  [port, access, url, ...hostnames.map(({ hostname, status }) => `${hostname} (${status})`), id].join('  ');

const LIST = tool({
  name: 'list_ports',
  title: 'List published ports',
  description: 'Lists the HTTP ports of an instance: port in the guest, access, URL, id.',
  input: fields({ instance: INSTANCE, limit: LIMIT, cursor: CURSOR }),
  hints: READS,
  run: async ({ berth, args: { instance, ...query }, signal }) => {
    const { id, name } = await berth.instances.find(instance, { signal });
    const { data, next_cursor } = await berth.call('listPorts', { path: { id }, query }, { signal });
    return { text: pageText(data.map(lineOf), next_cursor, `${name} publishes no ports.`) };
  },
});

const PUBLISH = tool({
  name: 'publish_port',
  title: 'Publish a port',
  description:
    'Gives an HTTP port of the guest a URL. The program must listen on all addresses (0.0.0.0). private: only with a Berth credential, or from the console. public: anybody who can reach Berth; ask the user first.',
  input: fields({
    instance: INSTANCE,
    port: Type.Integer({ minimum: 1, maximum: 65_535 }),
    access: Type.Optional(Type.Enum(['private', 'public'], { default: 'private' })),
  }),
  hints: { ...ADDS, openWorldHint: true },
  run: async ({ berth, args: { instance, ...body }, signal }) => {
    const { id, name } = await berth.instances.find(instance, { signal });
    const { url, access, port, id: port_id } = await berth.instances.createPort(id, body, { signal });
    return { text: `Port ${port} of ${name} is ${access} at ${url} (${port_id}).` };
  },
});

const UNPUBLISH = tool({
  name: 'unpublish_port',
  title: 'Withdraw a port',
  description:
    'Withdraws a published port. Lost: its URL and its custom hostnames; the generated hostname never comes back. Open connections end.',
  input: fields({
    instance: INSTANCE,
    port_id: Type.String({ minLength: 1, maxLength: 64, description: 'From list_ports: `port_…`' }),
  }),
  hints: DESTROYS,
  run: async ({ berth, args: { instance, port_id }, signal }) => {
    const { id } = await berth.instances.find(instance, { signal });
    await berth.call('deletePort', { path: { id, port_id } }, { signal });
    return { text: `${port_id} is withdrawn.` };
  },
});

export const PORT_TOOLS: readonly Tool[] = [LIST, PUBLISH, UNPUBLISH];
