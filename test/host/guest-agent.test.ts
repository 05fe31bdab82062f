/**
 * The guest agent client against a guest that misbehaves: no real agent can be made to. The well-behaved guest is
 * in vm-boot.test.ts.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, test } from 'node:test';
import {
  GuestAgent,
  GuestAgentClosedError,
  GuestAgentCutOffError,
  GuestAgentError,
  GuestAgentProtocolError,
  GuestAgentTimeoutError,
} from '../../src/host/guest/guest-agent.ts';
import { readGuestFile } from '../../src/host/guest/guest-commands.ts';

interface Command {
  readonly execute: string;
  readonly arguments: Record<string, unknown>;
}
const isProtocolError = (error: unknown) => error instanceof GuestAgentProtocolError;
type Answer = (command: Command, socket: Socket) => string | null;

describe('a guest agent client', { timeout: 300_000 }, () => {
  let folder: string;
  let path: string;
  let server: Server;
  let agent: GuestAgent;
  let greeting: string | Buffer;
  let answer: Answer;
  let seen: string[];
  let connections: number;
  let lost_syncs: number;
  let changes: number;
  let before_sync: string;

  /** Cuts the stream as qemu-ga does: 0xFF ends a half command, a line is a command. */
  function serve(socket: Socket): void {
    connections++;
    socket.on('error', () => {});
    if (greeting.length > 0) socket.write(greeting);
    let held = '';
    socket.on('data', (chunk) => {
      held += chunk.toString('latin1');
      for (let end = held.indexOf('\n'); end !== -1; end = held.indexOf('\n')) {
        const line = held.slice(held.lastIndexOf('\xff', end) + 1, end);
        held = held.slice(end + 1);
        const command = JSON.parse(line) as Command;
        seen.push(command.execute);
        if (command.execute === 'guest-sync-delimited' && lost_syncs > 0) {
          lost_syncs--;
          continue;
        }
        const reply =
          command.execute === 'guest-sync-delimited'
            ? `${before_sync}\xff${JSON.stringify({ return: command.arguments['id'] })}\n`
            : answer(command, socket);
        if (reply !== null) socket.write(Buffer.from(reply, 'latin1'));
      }
    });
  }

  beforeEach(async () => {
    folder = mkdtempSync(join(tmpdir(), 'bqga-'));
    path = join(folder, 'agent.sock');
    greeting = '';
    seen = [];
    connections = 0;
    lost_syncs = 0;
    changes = 0;
    before_sync = '';
    answer = () => '{"return": {}}\n';
    server = createServer(serve).listen(path);
    await once(server, 'listening');
    agent = new GuestAgent(path, () => changes++);
  });
  afterEach(() => {
    agent.close();
    server.close();
    rmSync(folder, { recursive: true, force: true });
  });

  test('a lost sync is repeated within the call’s timeout', async () => {
    answer = ({ execute }) => (execute === 'guest-ping' ? '{"return": {}}\n' : null);
    lost_syncs = 1;
    await agent.waitUntilUp(2_000);
  });

  test('a guest that booted for minutes and answers all earlier syncs at once is in sync', async () => {
    // As many as 300 s of greetings bring about.
    greeting = '{"error": {"desc": "half a command"}}\n\xff{"return": 1}\n'.repeat(150);
    await agent.waitUntilUp(5_000);
    answer = () => '{"return": 7}\n';
    assert.equal(await agent.execute('guest-get-time'), 7);
    assert.equal(connections, 1);
  });

  test('a guest that sends more than was requested is disconnected and cut off', async () => {
    greeting = '{"return": 1}\n'.repeat(20_000);
    answer = () => null;
    await assert.rejects(agent.execute('guest-get-time'), GuestAgentProtocolError);
    assert.deepEqual([agent.is_silent, agent.is_cut_off, changes], [true, true, 1]);
    const asked = seen.length;
    await assert.rejects(agent.execute('guest-get-time'), GuestAgentCutOffError);
    assert.deepEqual([connections, seen.length], [1, asked]);
    // As after a reset of the guest.
    greeting = '';
    answer = () => '{"return": 7}\n';
    agent.forgive();
    assert.equal(await agent.execute('guest-get-time'), 7);
    assert.deepEqual([agent.is_silent, agent.is_cut_off, changes], [false, false, 2]);
  });

  test('an agent is called again after its cut-off, and its replies are accepted', async () => {
    answer = () => 'what no agent says\n';
    await assert.rejects(agent.ping(), GuestAgentProtocolError);
    answer = () => '{"return": {}}\n';
    await agent.waitUntilUp(60_000);
    assert.deepEqual([agent.is_silent, changes, connections], [false, 2, 2]);
  });

  /** A reply of a hostile guest, and what becomes of the call. */
  const hostile: readonly (readonly [string, () => string, (error: unknown) => boolean])[] = [
    ['a line without an end', () => '['.repeat(200_000), isProtocolError],
    ['a reply of more than 64 KiB', () => `{"return":"${'x'.repeat(64 * 1024)}"}\n`, isProtocolError],
    ['45 MiB of empty lists', () => `{"return":[${'[],'.repeat(15 * 2 ** 20)}[]]}\n`, isProtocolError],
    ['a description of 10 MB', () => `{"error":{"desc":"${'y'.repeat(1e7)}"}}\n`, isProtocolError],
    ['lists in lists to the bound', () => `${'['.repeat(32_000)}${']'.repeat(32_000)}\n`, isProtocolError],
    ['no reply', () => '7\n', isProtocolError],
    ['a refusal without words', () => '{"error":{}}\n', (error) => error instanceof GuestAgentError],
    [
      'a description with commands for a terminal',
      () => `{"error":{"desc":"${'\\u001b]0;owned\\u0007\\u202e\\n'.repeat(500)}bad"}}\n`,
      (error) =>
        error instanceof GuestAgentError && error.desc.length <= 300 && /^[\x20-\x7e…]*$/.test(error.message),
    ],
    [
      'lists in lists for a description',
      () => `{"error":{"desc":${'['.repeat(30_000)}${']'.repeat(30_000)}}}\n`,
      (error) => error instanceof GuestAgentError && error.desc === 'unknown error',
    ],
  ];
  for (const [what, reply, expected] of hostile) {
    test(`${what} is refused with its own error`, async () => {
      answer = reply;
      await assert.rejects(agent.execute('guest-info', {}, { timeout_ms: 60_000 }), expected);
    });
  }

  test('an agent that sends thousands of short lines with each answer is read within a budget', async () => {
    before_sync = '\n'.repeat(1_500);
    // One too many: it is out of step each time.
    answer = () => '{"return": 7}\n{"return": 7}\n';
    const began = performance.now();
    let answered = 0;
    while (performance.now() - began < 1_500) {
      assert.equal(await agent.execute('guest-get-time'), 7);
      answered += 1;
    }
    const seconds = (performance.now() - began) / 1_000;
    // Each counts for 1.5 MiB at least, of 2 at once and 4 a second.
    assert.ok(answered <= 3 + 3 * seconds, `${answered} in ${seconds} s`);
  });

  test('bytes that trickle in do not extend a call', async () => {
    let trickle: NodeJS.Timeout | undefined;
    answer = (_, socket) => {
      trickle = setInterval(() => socket.write(' '), 1);
      socket.once('close', () => clearInterval(trickle));
      return null;
    };
    await assert.rejects(agent.execute('guest-slow', {}, { timeout_ms: 200 }), GuestAgentTimeoutError);
    clearInterval(trickle);
    assert.equal(agent.is_cut_off, false);
  });

  test('unrequested output of a guest is not read', async () => {
    const flood = '{"return": 1}\n'.repeat(500_000);
    const sockets: Socket[] = [];
    answer = (_, socket) => {
      sockets.push(socket);
      return '{"return": {}}\n';
    };
    await agent.ping();
    sockets[0]?.write(flood);
    for (let turn = 0; turn < 200; turn++) await new Promise((resolve) => setImmediate(resolve));
    // The kernel keeps some of it for us.
    assert.ok((sockets[0]?.writableLength ?? 0) > flood.length / 2, `${sockets[0]?.writableLength}`);
  });

  test('a file is read in pieces that fit, and a guest that answers byte by byte ends the read', async () => {
    const file = Buffer.alloc(100_000, 'abcdefg');
    let at = 0;
    let one_byte = false;
    answer = ({ execute, arguments: { count } }) => {
      if (execute !== 'guest-file-read') return '{"return": 5}\n';
      const piece = file.subarray(at, at + (one_byte ? 1 : Number(count)));
      at += piece.length;
      const read = { count: piece.length, 'buf-b64': piece.toString('base64'), eof: false };
      const line = `${JSON.stringify({ return: read })}\n`;
      assert.ok(line.length <= 64 * 1024, `${line.length}`);
      return line;
    };
    assert.equal((await readGuestFile(agent, '/file', 200_000)).compare(file), 0);
    [at, one_byte] = [0, true];
    assert.equal((await readGuestFile(agent, '/file', 200_000)).length, 1);
    answer = () => '{"return": {"buf-b64": {"length": 4000000000}}}\n';
    assert.equal((await readGuestFile(agent, '/file', 200_000)).length, 0);
  });

  test('stale replies and earlier garbage do not reach its commands', async () => {
    greeting = Buffer.concat([
      Buffer.from('{"return": 99}\n{"error": {"desc": "stray"}}\n{"ret'),
      Buffer.of(0xfe),
    ]);
    answer = () => '{"return": 7}\n';
    assert.equal(await agent.execute('guest-get-time'), 7);
  });

  test('after a timeout it syncs again, and the late reply is not taken for the next one', async () => {
    const late = Promise.withResolvers<() => void>();
    answer = (command, socket) => {
      if (command.execute !== 'guest-slow') return '{"return": "right"}\n';
      late.resolve(() => socket.write('{"return": "wrong"}\n'));
      return null;
    };
    // In step already: the time is that of the command alone.
    await agent.ping();
    await assert.rejects(agent.execute('guest-slow', {}, { timeout_ms: 30 }), GuestAgentTimeoutError);
    (await late.promise)();
    assert.equal(await agent.execute('guest-fast'), 'right');
    const sync = 'guest-sync-delimited';
    assert.deepEqual(seen, [sync, 'guest-ping', 'guest-slow', sync, 'guest-fast']);
    assert.equal(connections, 1);
  });

  test('calls made at once run one after the other', async () => {
    let open = 0;
    answer = (_, socket) => {
      assert.equal(++open, 1);
      setImmediate(() => {
        open--;
        socket.write('{"return": {}}\n');
      });
      return null;
    };
    await Promise.all(Array.from({ length: 10 }, () => agent.ping()));
  });

  test('a call that waits behind a slow one times out by itself, and is not sent', async () => {
    const slow = Promise.withResolvers<() => void>();
    answer = (command, socket) => {
      if (command.execute !== 'guest-slow') return '{"return": "next"}\n';
      slow.resolve(() => socket.write('{"return": "slow"}\n'));
      return null;
    };
    const first = agent.execute('guest-slow', {}, { timeout_ms: 600_000 });
    const release = await slow.promise;
    await assert.rejects(agent.execute('guest-late', {}, { timeout_ms: 30 }), GuestAgentTimeoutError);
    release();
    assert.equal(await first, 'slow');
    assert.equal(await agent.execute('guest-next'), 'next');
    assert.deepEqual(seen, ['guest-sync-delimited', 'guest-slow', 'guest-next']);
  });

  test('the agent’s refusal is an error with its message, and the channel stays in sync', async () => {
    answer = (command) =>
      command.execute === 'guest-bad'
        ? '{"error": {"class": "GenericError", "desc": "no"}}\n'
        : '{"return": {}}\n';
    await assert.rejects(agent.execute('guest-bad'), (error: unknown) => {
      assert.ok(error instanceof GuestAgentError);
      assert.equal(error.desc, 'no');
      return true;
    });
    await agent.ping();
    assert.equal(seen.filter((name) => name === 'guest-sync-delimited').length, 1);
  });

  test('a lost connection rejects, and the next call connects again', async () => {
    answer = (_, socket) => {
      socket.destroy();
      return null;
    };
    await assert.rejects(agent.ping(), GuestAgentClosedError);
    answer = () => '{"return": {}}\n';
    await agent.ping();
    assert.equal(connections, 2);
  });

  test('an unanswered freeze may have happened, until a thaw is confirmed', async () => {
    answer = (command) => (command.execute === 'guest-fsfreeze-freeze' ? null : '{"return": 1}\n');
    // In step before: else the time may be over before the freeze is sent.
    await agent.ping();
    assert.equal(agent.maybe_frozen, false);
    await assert.rejects(agent.fsfreeze(30), GuestAgentTimeoutError);
    assert.equal(agent.maybe_frozen, true);
    await agent.thaw();
    assert.equal(agent.maybe_frozen, false);
  });

  test('a shutdown needs no answer, and a refused one is an error', async () => {
    answer = () => null;
    await agent.shutdown('powerdown');
    answer = () => '{"error": {"desc": "no shutdown here"}}\n';
    await assert.rejects(agent.shutdown('reboot'), GuestAgentError);
  });

  test('a time beyond 2^53 arrives exactly, and a missing hardware clock is no failure', async () => {
    let raw: Command | undefined;
    answer = (command) => {
      raw = command;
      return '{"error": {"desc": "hwclock failed to set hardware clock to system time"}}\n';
    };
    await agent.setTime(1_900_000_000_000_000_123n);
    assert.equal(raw?.arguments['time'], Number(1_900_000_000_000_000_123n));
  });

  test('further replies are not taken for answers to later commands', async () => {
    answer = ({ execute }) => `{"return": "${execute}"}\n`.repeat(200);
    for (let nth = 0; nth < 20; nth++) {
      const command = `guest-${nth}`;
      assert.equal(await agent.execute(command), command);
      // What came late is there by the next.
      await new Promise((resolve) => setImmediate(resolve));
    }
    assert.equal(connections, 1);
  });

  test('waiting for an absent guest ends at the timeout or by the signal, and logs one line every two seconds', async () => {
    server.removeAllListeners('connection');
    let bytes = 0;
    server.on('connection', (socket) =>
      socket.on('error', () => {}).on('data', (chunk) => (bytes += chunk.length)),
    );
    await assert.rejects(agent.waitUntilUp(60), GuestAgentTimeoutError);
    assert.ok(bytes < 200, `${bytes}`);
    const aborter = new AbortController();
    const waiting = agent.waitUntilUp(20_000, aborter.signal);
    aborter.abort(new Error('stopping'));
    await assert.rejects(waiting, /stopping/);
  });

  test('a closed client refuses calls, also those that wait', async () => {
    answer = () => null;
    const waiting = [agent.ping(), agent.ping()];
    const settled = Promise.allSettled(waiting);
    agent.close();
    for (const outcome of await settled) {
      assert.ok(outcome.status === 'rejected' && outcome.reason instanceof GuestAgentClosedError);
    }
    await assert.rejects(agent.ping(), GuestAgentClosedError);
  });
});
