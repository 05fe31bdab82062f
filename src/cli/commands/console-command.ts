/** The serial console as a terminal, until Ctrl-]. Bytes pass unchanged in both directions. */
import { once } from 'node:events';
import type { Call, Command } from '../command.ts';
import { CommandError } from '../command-error.ts';
import { EXIT } from '../exit-codes.ts';

/** Ctrl-], as in telnet and virsh: shells and editors hardly use it. */
const END_BYTE = 0x1d;
/** The close codes of a VM's end, or of our own. */
const OVER = 1000;
/** How long to wait for the server's close frame, which a dead network never delivers. */
const CLOSE_MS = 1_000;

async function openConsole(call: Call): Promise<undefined> {
  const { args, session, terminal } = call;
  const { stdin, stdout } = process;
  if (stdin.isTTY !== true || stdout.isTTY !== true) {
    throw new CommandError('a console needs a terminal', {
      next: `berth exec ${args[0] ?? 'NAME'} COMMAND`,
      exit_code: EXIT.usage,
    });
  }
  const berth = session.berth();
  const { id, name } = await berth.instances.find(args[0] ?? '');
  const { ticket } = await berth.call('createConsoleTicket', { path: { id } });
  const path = `/v1/instances/${id}/vm/console/stream?ticket=${encodeURIComponent(ticket)}`;
  const socket = new WebSocket(berth.url.replace(/^http/, 'ws') + path);
  socket.binaryType = 'arraybuffer';
  const closed = once(socket, 'close') as Promise<[CloseEvent]>;
  // The close event follows, with the reason.
  socket.addEventListener('error', () => undefined);
  socket.addEventListener('message', ({ data }) => void stdout.write(Buffer.from(data as ArrayBuffer)));
  let ended_here = false;
  const given_up = Promise.withResolvers<null>();
  const onTyped = (typed: Buffer) => {
    const end = typed.indexOf(END_BYTE);
    const before = end === -1 ? typed : typed.subarray(0, end);
    if (before.length > 0 && socket.readyState === WebSocket.OPEN) socket.send(new Uint8Array(before));
    if (end === -1) return;
    ended_here = true;
    socket.close(OVER);
    setTimeout(() => given_up.resolve(null), CLOSE_MS).unref();
  };
  // Before this, input is ignored and Ctrl-C ends the wait.
  await Promise.race([once(socket, 'open'), closed]);
  let end: [CloseEvent] | null;
  // Before the message, so that an early Ctrl-C goes to the guest.
  stdin.setRawMode(true);
  try {
    if (socket.readyState === WebSocket.OPEN)
      terminal.warn(`Connected to ${name}. Enter shows the prompt; Ctrl-] ends.`);
    stdin.on('data', onTyped).resume();
    end = await Promise.race([closed, given_up.promise]);
  } finally {
    stdin.off('data', onTyped).pause();
    stdin.setRawMode(false);
    stdout.write('\n');
  }
  // Otherwise the socket keeps the process alive until TCP gives up.
  if (end === null) process.exit(EXIT.done);
  const [{ code, reason }] = end;
  if (ended_here || code === OVER) return undefined;
  throw new CommandError(reason || `the connection to the console was lost (${code})`, {
    next: `berth console ${name}`,
  });
}

export const CONSOLE: Command = {
  name: 'console',
  args: ['NAME'],
  names_instances: true,
  summary: 'open the serial console, live, with a root shell; Ctrl-] ends it',
  example: 'berth console web',
  run: openConsole,
};
