/**
 * The gate's process: `gate-process.ts RELAY UDP TCP ROOTS_FILE USER`, started by gate-child.ts with its listening sockets open. It reads
 * bytes of hostile guests, so it gives up root before the first one, and ends with the agent. It holds values of secrets: what it says at a
 * crash has none, and its core dumps have no memory, as those of the agent.
 */
import { createSocket } from 'node:dgram';
import { createServer } from 'node:net';
import { ConnectionBudget, filesForConnections, openFilesLimit } from '../../shared/connection-budget.ts';
import { contain, reportThrows } from '../../shared/contain.ts';
import { serveTcp, serveUdp } from './dns-server.ts';
import { Gate } from './gate.ts';
import type { FromGate, ToGate } from './gate-messages.ts';

const [, , relay_fd, udp_fd, tcp_fd, roots_file = '', user] = process.argv;
process.on('uncaughtException', (error) => process.stderr.write(traceOf(error), () => process.exit(1)));
reportThrows((error) => process.stderr.write(traceOf(error)));

/** Not the message: it could quote what was being read. */
function traceOf({ name, stack }: Error): string {
  const frames = String(stack)
    .split('\n')
    .filter((line) => /^ +at /.test(line));
  return `${name}\n${frames.join('\n')}\n`;
}

const tell = (message: FromGate) => {
  if (process.connected) process.send?.(message);
};
const gate = new Gate({ roots_file, tell });
/** The VM with the most loses its oldest. Each has another to where it leads. */
const most = Math.floor(filesForConnections(openFilesLimit()) / 2);
const connections = new ConnectionBudget({ most, per_source: most });
const relay = contain(createServer({ allowHalfOpen: true, noDelay: true }));
relay.on('connection', (socket) => connections.admit(socket) && gate.accept(socket));
relay.listen({ fd: Number(relay_fd) });
const names = contain(createSocket('udp4'));
names.on('error', () => undefined);
serveUdp(names, gate.findGuest);
names.bind({ fd: Number(udp_fd) });
const names_by_tcp = contain(createServer());
names_by_tcp.on('connection', (socket) => connections.admit(socket));
serveTcp(names_by_tcp, gate.findGuest);
names_by_tcp.listen({ fd: Number(tcp_fd) });

if (process.getuid?.() === 0) {
  const id = Number(user);
  process.setgroups?.([]);
  process.setgid?.(id);
  process.setuid?.(id);
}
process.on('message', (message: ToGate) => {
  if (message.type === 'certificate') return void gate.takeCertificate(message);
  if (message.type === 'admitted') return gate.takeAdmitted(message);
  gate.apply(message);
  tell({ type: 'applied', sequence: message.sequence });
});
process.once('disconnect', () => process.exit(0));
