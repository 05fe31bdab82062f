import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createLog } from '../../shared/log.ts';
import { LoginWatch } from './sshd.ts';

const key = (letter: string) => `SHA256:${letter.repeat(43)}`;
const login = (letter: string) =>
  `Accepted publickey for root from 10.0.2.2 port 5${letter.charCodeAt(0)} ssh2: ED25519 ${key(letter)}\r\n`;

/** The agent's file commands on one file, as qemu-ga answers them. */
class LogInGuest {
  text = '';
  readonly calls: string[] = [];
  maybe_frozen = false;
  #at = 0;

  async execute(command: string, args: Record<string, unknown>): Promise<unknown> {
    this.calls.push(command);
    if (command === 'guest-file-open') return 7;
    if (command === 'guest-file-seek') {
      this.#at = (args['whence'] === 'end' ? this.text.length : 0) + Number(args['offset']);
      return { position: this.#at, eof: false };
    }
    if (command !== 'guest-file-read') return {};
    const part = this.text.slice(this.#at, this.#at + Number(args['count']));
    this.#at += part.length;
    return { 'buf-b64': Buffer.from(part).toString('base64'), eof: this.#at === this.text.length };
  }
}

function watched(has_past = false) {
  const log = new LogInGuest();
  const watch = new LoginWatch(log, has_past, createLog('test', 'silent'));
  const look = async () => {
    let said: readonly string[] = [];
    await watch.report(async (fingerprints) => {
      said = fingerprints;
    });
    return said;
  };
  return { log, watch, look };
}

test('a login is reported once, however often the log is read', async () => {
  const { log, look } = watched();
  log.text = `Server listening on 0.0.0.0 port 22.\r\n${login('a')}${login('b')}${login('a')}`;
  assert.deepEqual(await look(), [key('a'), key('b')]);
  assert.deepEqual(await look(), []);
  assert.deepEqual(log.calls.slice(-3), ['guest-file-open', 'guest-file-seek', 'guest-file-close']);
  log.text += login('a');
  assert.deepEqual(await look(), [key('a')]);
});

test('half a line waits for its other half', async () => {
  const { log, look } = watched();
  log.text = login('a').slice(0, 60);
  assert.deepEqual(await look(), []);
  log.text = login('a');
  assert.deepEqual(await look(), [key('a')]);
});

test('a log that was emptied, and that of another boot, are read from their beginning', async () => {
  const { log, watch, look } = watched();
  log.text = login('a') + login('b');
  await look();
  log.text = login('c');
  assert.deepEqual(await look(), [key('c')]);
  log.text = login('d') + login('e');
  watch.reset();
  assert.deepEqual(await look(), [key('d'), key('e')]);
});

test('logins from before an adoption are not reported', async () => {
  const { log, look } = watched(true);
  log.text = login('a');
  assert.deepEqual(await look(), []);
  log.text += login('b');
  assert.deepEqual(await look(), [key('b')]);
});

test('a failed report is repeated, and a frozen guest is not asked', async () => {
  const { log, watch, look } = watched();
  log.text = login('a');
  await watch.report(() => Promise.reject(new Error('away')));
  log.maybe_frozen = true;
  assert.deepEqual(await look(), []);
  log.maybe_frozen = false;
  assert.deepEqual(await look(), [key('a')]);
});

test('only whole lines of sshd about a key count', async () => {
  const { log, look } = watched();
  log.text = [
    `Failed publickey for root from 10.0.2.2 port 5 ssh2: ED25519 ${key('a')}`,
    'Accepted password for root from 10.0.2.2 port 5 ssh2',
    `Accepted publickey for root from 10.0.2.2 port 5 ssh2: ED25519 ${key('b')} and more`,
    '',
  ].join('\n');
  assert.deepEqual(await look(), []);
});
