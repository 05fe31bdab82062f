import assert from 'node:assert/strict';
import { test } from 'node:test';
import { OpenPortResult } from './host-calls.ts';
import { OpenPortResponse } from './ingress-types.ts';
import { conforms, GuestSshAddress } from './schemas.ts';

/** As the host answers the control plane, and that its ingress. */
const mayBeDialled = (address: string) => {
  const [by_host, by_control_plane] = [
    conforms(OpenPortResult, { address }),
    conforms(OpenPortResponse, { outcome: 'open', address }),
  ];
  assert.equal(by_host, by_control_plane, address);
  return by_host;
};

test('an ingress dials only addresses that guests have', () => {
  for (const own of ['198.18.0.1:80', '198.18.255.255:8080', '127.64.0.1:1024', '127.127.255.254:32767'])
    assert.ok(mayBeDialled(own), own);
  for (const other of [
    ...['127.0.0.1:5432', '127.63.255.255:80', '127.128.0.1:80', '10.0.0.1:80', '169.254.169.254:80'],
    ...['198.19.0.1:80', '198.180.0.1:80', '203.0.113.1:443', '0.0.0.0:80', '[::1]:80', 'localhost:80'],
    ...['198.18.0.256:80', '198.18.0.01:80', '198.18.1:80', '198.18.0.1:0', '198.18.0.1:80\\n', '198.18.0.1'],
  ])
    assert.ok(!mayBeDialled(other), other);
});

test('a guest’s sshd is at its own address, or at the loopback', () => {
  for (const own of ['198.18.85.240:22', '127.0.0.1:40000']) assert.ok(conforms(GuestSshAddress, own), own);
  for (const other of ['127.0.0.2:22', '10.0.0.1:22', '198.18.0.999:22', '198.19.0.1:22'])
    assert.ok(!conforms(GuestSshAddress, other), other);
});
