/**
 * The gate's process: `gate-process.ts`, started by `start-gate.ts` with its listening sockets open. It reads bytes of hostile guests,
 * so it gives up root before the first one, and ends with the agent.
 */
import { createSocket } from 'node:dgram';
import { createServer } from 'node:net';
import { serveTcp, serveUdp } from './dns-server.ts';
import { Gate } from './gate.ts';
import type { FromGate, GateState } from './gate-messages.ts';

const [, , relay_fd, udp_fd, tcp_fd, user] = process.argv;

const tell = (message: FromGate) => {
  if (process.connected) process.send?.(message);
};
const gate = new Gate((denials) => tell({ type: 'denied', denials }));
const relay = createServer({ allowHalfOpen: true, noDelay: true });
relay.on('connection', gate.accept);
relay.listen({ fd: Number(relay_fd) });
const names = createSocket('udp4');
names.on('error', () => undefined);
serveUdp(names, gate.findGuest);
names.bind({ fd: Number(udp_fd) });
const names_by_tcp = createServer();
serveTcp(names_by_tcp, gate.findGuest);
names_by_tcp.listen({ fd: Number(tcp_fd) });

if (process.getuid?.() === 0) {
  const id = Number(user);
  process.setgroups?.([]);
  process.setgid?.(id);
  process.setuid?.(id);
}
process.on('message', (state: GateState) => {
  gate.apply(state);
  tell({ type: 'applied', sequence: state.sequence });
});
process.once('disconnect', () => process.exit(0));
