/**
 * The program of the egress proxy's process: `main.ts RELAY UDP TCP ROOTS_FILE USER`. The agent
 * (host/egress/egress-proxy-child.ts) starts it. RELAY, UDP and TCP are the file descriptors of its listening sockets,
 * which are open already. The process parses bytes of hostile guests, so it gives up root before it serves the first
 * one. It exits when the agent ends. It holds values of secrets, so a crash prints the stack without the message, and
 * its core dumps have no memory, like the agent's.
 */
import { createSocket } from 'node:dgram';
import { createServer } from 'node:net';
import type { FromEgressProxy, ToEgressProxy } from '../protocol/egress-proxy-messages.ts';
import { ConnectionBudget, filesForConnections, openFilesLimit } from '../shared/connection-budget.ts';
import { contain, reportThrows } from '../shared/contain.ts';
import { serveTcp, serveUdp } from './dns-server.ts';
import { EgressProxy } from './egress-proxy.ts';

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

const tell = (message: FromEgressProxy) => {
  if (process.connected) process.send?.(message);
};
const proxy = new EgressProxy({ roots_file, tell });
/** The VM with the most loses its oldest. Each has another to where it leads. */
const most = Math.floor(filesForConnections(openFilesLimit()) / 2);
const connections = new ConnectionBudget({ most, per_source: most });
const relay = contain(createServer({ allowHalfOpen: true, noDelay: true }));
relay.on('connection', (socket) => connections.admit(socket) && proxy.accept(socket));
relay.listen({ fd: Number(relay_fd) });
const names = contain(createSocket('udp4'));
names.on('error', () => undefined);
serveUdp(names, proxy.findGuest);
names.bind({ fd: Number(udp_fd) });
const names_by_tcp = contain(createServer());
names_by_tcp.on('connection', (socket) => connections.admit(socket));
serveTcp(names_by_tcp, proxy.findGuest);
names_by_tcp.listen({ fd: Number(tcp_fd) });

if (process.getuid?.() === 0) {
  const id = Number(user);
  process.setgroups?.([]);
  process.setgid?.(id);
  process.setuid?.(id);
}
process.on('message', (message: ToEgressProxy) => {
  if (message.type === 'certificate') return void proxy.takeCertificate(message);
  if (message.type === 'admitted') return proxy.takeAdmitted(message);
  proxy.apply(message);
  tell({ type: 'applied', sequence: message.sequence });
});
process.once('disconnect', () => process.exit(0));
