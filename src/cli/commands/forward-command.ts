/** `berth forward`: a port of this machine that leads to a TCP port of a guest, over the API and without an SSH key. */
import { once } from 'node:events';
import { createServer, type Server } from 'node:net';
import type { Call, Command } from '../command.ts';
import { CommandError, UsageError } from '../command-error.ts';
import { EXIT } from '../exit-codes.ts';
import { tcpPort } from '../numbers.ts';

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
  const { forwardConnection } = await import('../forward-connection.ts');
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

export const FORWARD: Command = {
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
