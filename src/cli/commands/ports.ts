/**
 * Makes ports of a guest reachable. `berth port …` publishes HTTP ports under a URL; `berth forward` makes a TCP port
 * of the guest a local port. The latter uses the API, so it needs no SSH key.
 */
import { once } from 'node:events';
import { createServer, type Server } from 'node:net';
import type { Berth, Instance, Port } from '../../../client/src/berth.ts';
import { openBrowser } from '../browser.ts';
import { type Call, type Command, INSTANCE } from '../command.ts';
import { CommandError, EXIT, UsageError } from '../command-error.ts';
import { collect, findNamed } from '../reading.ts';
import { timeCell, when } from '../table.ts';
import { tcpPort } from '../values.ts';

const ACCESSES = ['private', 'public'] as const;

interface Found {
  readonly berth: Berth;
  readonly instance: Instance;
  readonly port: Port;
}

/** The port that the second argument names: by its number, hostname, URL or id. @throws CommandError */
async function findPort({ session, args }: Call): Promise<Found> {
  const berth = session.berth();
  const instance = await berth.instances.find(args[0] ?? '');
  const { id, name } = instance;
  const port = await findNamed(berth.list('listPorts', { path: { id } }), args[1] ?? '', {
    what: 'HTTP port',
    list: `berth port ls ${name}`,
    also: (each) => [String(each.port), each.hostname, each.url],
    detail: (each) => `${each.url} (${each.access})`,
  });
  return { berth, instance, port };
}

const pathOf = ({ id, instance_id }: Port) => ({ id: instance_id, port_id: id });

/** What a browser needs for a private port. */
const privately = (name: string, { port }: Port) =>
  `It is private. In a browser: berth port open ${name} ${port}. With curl: -H "Authorization: Bearer $BERTH_API_KEY"`;

async function add(call: Call): Promise<undefined> {
  const { args, options, session, terminal } = call;
  const port = tcpPort(args[1] ?? '');
  const access = options.flag('public') ? 'public' : 'private';
  const berth = session.berth();
  const { id, name } = await berth.instances.find(args[0] ?? '');
  const made = await berth.instances.createPort(id, { port, access });
  const note = access === 'public' ? 'It is public: anybody can open it.' : privately(name, made);
  terminal.done(`Published port ${port} of ${name}:\n${made.url}\n${note}`, made, made.url);
}

/** The first sentence; `port show` has all. */
const lastError = ({ last_error }: Port) =>
  last_error === null ? '-' : (last_error.message.split(/(?<=[.]) /)[0] ?? '');

async function list({ session, args, terminal }: Call): Promise<undefined> {
  const berth = session.berth();
  const { id, name } = await berth.instances.find(args[0] ?? '');
  terminal.list(await collect(berth.list('listPorts', { path: { id } })), {
    headings: ['PORT', 'ACCESS', 'URL', 'REQUESTS/MIN', 'LAST ERROR', 'CREATED', 'ID'],
    row: (each) => [
      { text: String(each.port), value: each.port },
      each.access,
      each.url,
      { text: String(each.requests_per_minute), value: each.requests_per_minute },
      lastError(each),
      timeCell(each.created_at),
      each.id,
    ],
    quiet: ({ url }) => url,
    empty: `${name} has no HTTP ports. Publish one: berth port add ${name} PORT`,
  });
}

type Row = readonly [string, string];

function hostnameRows({ hostname, status, txt, problem }: Port['hostnames'][number]): readonly Row[] {
  const state: Row = ['hostname', `${hostname} (${status})`];
  if (status === 'active') return [state];
  const record: Row = ['  TXT record', `${txt.name} = ${txt.value}`];
  return problem === null ? [state, record] : [state, record, ['  problem', problem]];
}

async function show(call: Call): Promise<undefined> {
  const { port, instance } = await findPort(call);
  call.terminal.one(port, {
    rows: (each) => [
      ['port', `${each.port} of ${instance.name}`],
      ['URL', each.url],
      ['access', each.access],
      ...each.hostnames.flatMap(hostnameRows),
      ['requests a minute', String(each.requests_per_minute)],
      [
        'last error',
        each.last_error === null ? '-' : `${each.last_error.message} ${when(each.last_error.at)}`,
      ],
      ['created', when(each.created_at)],
      ['id', each.id],
    ],
    quiet: ({ url }) => url,
  });
}

async function setAccess(call: Call): Promise<undefined> {
  const access = ACCESSES.find((each) => each === call.args[2]);
  if (access === undefined) throw new UsageError(`the access is private or public, not ${call.args[2]}`);
  const { berth, instance, port } = await findPort(call);
  const changed = await berth.call('changePort', { path: pathOf(port), body: { access } });
  const note = access === 'public' ? 'Anybody can open it.' : privately(instance.name, changed);
  call.terminal.done(`${changed.url} is now ${access}. ${note}`, changed, changed.url);
}

async function remove(call: Call): Promise<undefined> {
  const { berth, port } = await findPort(call);
  await berth.call('deletePort', { path: pathOf(port) });
  const { hostname, id } = port;
  call.terminal.done(`Deleted ${hostname}. The name is never assigned again.`, { deleted: id }, id);
}

/** A private port is opened by the console, where the browser has its own login. */
async function open(call: Call): Promise<undefined> {
  const { berth, instance, port } = await findPort(call);
  const url =
    port.access === 'public' ? port.url : `${berth.url}/instances/${instance.name}/ports/${port.id}`;
  const opened = call.terminal.format === 'human' && (await openBrowser(call.session.env, url));
  const sentence = opened ? `Opened ${url}` : url;
  call.terminal.done(sentence, { url }, url);
}

async function addHostname(call: Call): Promise<undefined> {
  const { berth, instance, port } = await findPort(call);
  const hostname = call.args[2] ?? '';
  const made = await berth.call('addPortHostname', { path: pathOf(port), body: { hostname } });
  const { txt } = made;
  const sentence =
    `Added ${made.hostname}. It is active once this TXT record is found:\n${txt.name}  TXT  ${txt.value}\n` +
    `Let ${made.hostname} lead to this installation, such as by a CNAME record for ${port.hostname}. ` +
    `To see when it is active: berth port show ${instance.name} ${call.args[1]}`;
  call.terminal.done(sentence, made, made.hostname);
}

async function removeHostname(call: Call): Promise<undefined> {
  const { berth, instance, port } = await findPort(call);
  const hostname = (call.args[2] ?? '').toLowerCase();
  if (!port.hostnames.some((each) => each.hostname === hostname)) {
    throw new CommandError(`port ${port.port} has no hostname ${hostname}`, {
      next: `berth port show ${instance.name} ${call.args[1]}`,
      exit_code: EXIT.not_found,
    });
  }
  await berth.call('deletePortHostname', { path: { ...pathOf(port), hostname } });
  call.terminal.done(
    `Removed ${hostname} from port ${port.port} of ${instance.name}.`,
    { deleted: hostname },
    hostname,
  );
}

const PORT = { args: ['NAME', 'HTTP-PORT'], names_instances: true } as const;
const BY = 'The port is named by its number, hostname, URL or id.';

const LOOPBACK = '127.0.0.1';

async function forward(call: Call): Promise<undefined> {
  const { args, session, terminal, signal, options } = call;
  const [remote_text = '', local_text, ...more] = (args[1] ?? '').split(':');
  if (more.length > 0) throw new UsageError(`a port is PORT or PORT:LOCAL, not ${args[1]}`);
  const remote = tcpPort(remote_text);
  const local = local_text === undefined ? remote : localPort(local_text);
  const berth = session.berth();
  const { id, name, vm } = await berth.instances.find(args[0] ?? '');
  if (vm.state !== 'running') {
    const next = `berth start ${name}`;
    throw new CommandError(`${name} is not running`, { next, exit_code: EXIT.state });
  }
  // Loaded by this command alone.
  const { forwardConnection } = await import('../guest-connections.ts');
  const server = createServer({ allowHalfOpen: true, pauseOnConnect: true }, (socket) => {
    forwardConnection(socket, berth.instances.forward(id, remote), (problem) =>
      terminal.warn(`berth: ${name}:${remote}: ${problem}`),
    );
  });
  const port = await listening(server, options.text('address') ?? LOOPBACK, local);
  const { address } = server.address() as { address: string };
  const at = `${address.includes(':') ? `[${address}]` : address}:${port}`;
  terminal.done(
    `Forwarding ${at} to port ${remote} of ${name}. Ctrl-C ends it.`,
    { address: at, instance_id: id, port: remote },
    at,
  );
  if (!signal.aborted) await once(signal, 'abort');
  // Its connections end with the process.
  server.close();
  signal.throwIfAborted();
}

/** 0: any free one. */
function localPort(text: string): number {
  return text === '0' ? 0 : tcpPort(text);
}

async function listening(server: Server, host: string, port: number): Promise<number> {
  server.listen({ host, port });
  try {
    await once(server, 'listening');
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    const taken = code === 'EADDRINUSE' || code === 'EACCES';
    throw new CommandError(taken ? `port ${port} of ${host} cannot be opened here: ${code}` : message, {
      next: taken ? 'give another local port: PORT:LOCAL, or PORT:0 for any free one' : null,
    });
  }
  return (server.address() as { port: number }).port;
}

const FORWARD: Command = {
  name: 'forward',
  args: ['NAME', 'PORT[:LOCAL]'],
  names_instances: true,
  summary: 'make a TCP port of the guest a port of this machine, until Ctrl-C',
  details:
    'It goes over the API, without an SSH key. LOCAL is the port here; default: the same; 0: any free one. The VM must run, and the program in it must listen on all addresses (0.0.0.0), not on 127.0.0.1 alone.',
  example: 'berth forward web 5432',
  options: {
    address: { type: 'string', value: 'IP', help: `the address to listen on; default: ${LOOPBACK}` },
  },
  run: forward,
};

export const PORT_COMMANDS: readonly Command[] = [
  {
    name: 'port add',
    args: ['NAME', 'PORT'],
    names_instances: true,
    summary: 'publish a port of the guest under a URL',
    details:
      'Only credentials that may read the VM, and browsers that you send with `berth port open`, have access. With wake on connect, the first request starts the VM.',
    example: 'berth port add web 8080',
    options: {
      public: { type: 'boolean', help: 'anybody has access; default: private', field: 'access' },
    },
    run: add,
  },
  {
    name: 'port ls',
    ...INSTANCE,
    summary: "list an instance's HTTP ports",
    example: 'berth port ls web',
    run: list,
  },
  {
    ...PORT,
    name: 'port show',
    summary: 'show an HTTP port with its hostnames',
    details: BY,
    example: 'berth port show web 8080',
    run: show,
  },
  {
    ...PORT,
    name: 'port open',
    summary: 'open the URL in a browser, also of a private port; without a browser, print the URL',
    details: `${BY} A private port is opened by way of the console, which may ask you to log in.`,
    example: 'berth port open web 8080',
    run: open,
  },
  {
    name: 'port set-access',
    args: ['NAME', 'HTTP-PORT', 'private|public'],
    names_instances: true,
    summary: 'change who has access: private or public',
    details: `${BY} Connections without access end within 5 s.`,
    example: 'berth port set-access web 8080 public',
    run: setAccess,
  },
  {
    ...PORT,
    name: 'port rm',
    summary: 'delete the URL of a port',
    details: `${BY} Its hostname is never assigned again.`,
    example: 'berth port rm web 8080',
    run: remove,
  },
  {
    name: 'port hostname add',
    args: ['NAME', 'HTTP-PORT', 'HOSTNAME'],
    names_instances: true,
    summary: 'add a hostname of your own to an HTTP port',
    details: `${BY} The output has the TXT record that proves that the hostname is yours.`,
    example: 'berth port hostname add web 8080 app.example.com',
    run: addHostname,
  },
  {
    name: 'port hostname rm',
    args: ['NAME', 'HTTP-PORT', 'HOSTNAME'],
    names_instances: true,
    summary: 'remove a hostname of your own',
    details: BY,
    example: 'berth port hostname rm web 8080 app.example.com',
    run: removeHostname,
  },
  FORWARD,
];
