import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { PassThrough } from 'node:stream';
import { test } from 'node:test';
import { only } from '../../../test/support/only.ts';
import type { ControlPlaneClient } from '../../protocol/client.ts';
import type { CallAnswer, PendingCall } from '../../protocol/host-calls.ts';
import { type InstanceId, newId } from '../../shared/ids.ts';
import { createLog } from '../../shared/log.ts';
import type { HostContext } from '../host-context.ts';
import type { Machine } from '../vm/machine.ts';
import { type CalledReconciler, CallServer, dialSshd } from './call-server.ts';

const instance_id = 'inst_01h0000000000000000000000' as InstanceId;
const call: PendingCall = {
  id: 'call',
  call: { kind: 'console', instance_id, vm_id: newId('vm') },
};

function serverOf(client: Pick<ControlPlaneClient, 'calls' | 'answerCall'>, runner: CalledReconciler) {
  const context = only<HostContext>({ client, log: createLog('test', 'silent') });
  return new CallServer(
    context,
    () => runner,
    only<ConstructorParameters<typeof CallServer>[2]>({ meters: {}, execs: {} }),
  );
}

test('a call for a VM waits until a restarted agent has adopted it, and does not fail as not running', async () => {
  const adopted = Promise.withResolvers<void>();
  const asked: string[] = [];
  const machine = only<Machine>({ console: { attach: () => undefined } });
  let present = false;
  const runner: CalledReconciler = {
    isQuiet: true,
    get adopted() {
      asked.push('adopted');
      return adopted.promise;
    },
    machineOf: () => (present ? machine : null),
  };
  const answered = Promise.withResolvers<CallAnswer>();
  const stop = new AbortController();
  let polls = 0;
  const client = {
    calls: async () => {
      polls += 1;
      if (polls === 1) return { calls: [call] };
      // The call before was begun.
      present = true;
      adopted.resolve();
      return new Promise<never>((_resolve, reject) =>
        stop.signal.addEventListener('abort', () => reject(stop.signal.reason)),
      );
    },
    openConsole: async () => new PassThrough(),
    answerCall: async ({ answer }: { answer: CallAnswer }) => {
      answered.resolve(answer);
      return { outcome: 'accepted' } as const;
    },
  };
  const server = serverOf(client, runner);
  const running = server.run(stop.signal);
  assert.deepEqual(await answered.promise, { result: null });
  assert.deepEqual(asked, ['adopted']);
  stop.abort();
  await running;
});

test('an agent that ends does not wait for a VM that cannot be adopted', async () => {
  const stop = new AbortController();
  const begun = Promise.withResolvers<void>();
  const never: CalledReconciler = {
    isQuiet: true,
    get adopted() {
      begun.resolve();
      return new Promise<void>(() => undefined);
    },
    machineOf: () => null,
  };
  let polls = 0;
  const client = {
    calls: async () => {
      polls += 1;
      if (polls === 1) return { calls: [call] };
      await begun.promise;
      stop.abort();
      throw stop.signal.reason;
    },
    answerCall: async () => ({ outcome: 'accepted' }) as const,
  };
  await serverOf(client, never).run(stop.signal);
  assert.ok(stop.signal.aborted);
});

test('a connection that its VM breaks before it reaches its caller is closed, and nothing else', async (t) => {
  const sshd = createServer().listen(0, '127.0.0.1');
  t.after(() => sshd.close());
  await once(sshd, 'listening');
  const accepted = once(sshd, 'connection') as Promise<[Socket]>;
  const { port } = sshd.address() as AddressInfo;
  const socket = await dialSshd({ record: { network: { kind: 'user', ssh_forward_port: port } } } as Machine);
  const [theirs] = await accepted;
  theirs.resetAndDestroy();
  // Not by `once`, which would be there for an error too.
  await new Promise((resolve) => socket.on('close', resolve));
  assert.equal(socket.errored?.message, 'read ECONNRESET');
});
