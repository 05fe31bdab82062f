import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseSockets } from './guest-ports.ts';

test("QEMU's list of sockets is read: forwards and connections of TCP, with their addresses on this machine", () => {
  const text = `Hub -1 (net0):
  Protocol[State]    FD  Source Address  Port   Dest. Address  Port RecvQ SendQ
  TCP[ESTABLISHED]   33     127.77.1.2  4000       10.0.2.15  8080     0     0
  TCP[TIME_WAIT]     -1      10.0.2.15 40000  93.184.216.34   443     0     0
  TCP[HOST_FORWARD]  12     127.77.1.2  4000       10.0.2.15  8080     0     0
  UDP[137 sec]       40      10.0.2.15 50000       127.0.0.1    53     0     0\r\n`;
  assert.deepEqual(parseSockets(text), [
    { state: 'ESTABLISHED', address: '127.77.1.2:4000' },
    { state: 'TIME_WAIT', address: '10.0.2.15:40000' },
    { state: 'HOST_FORWARD', address: '127.77.1.2:4000' },
  ]);
});
