/** examples/notebook as its page says: an image of Debian's packages, a server at a private URL, code that runs in it, a wake. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { on } from 'node:events';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import WebSocket from 'ws';
import { ExampleShell } from '../support/example-shell.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import { thorough } from '../support/thorough.ts';
import { untilWorks } from '../support/waiting.ts';

const THOROUGH = thorough(import.meta.filename);

/** A hook has the runner's timeout, not that of its suite. Building the image can take more than ten minutes. */
const BUILT = { timeout: 1_800_000 };

describe('a notebook server', { skip: CANNOT_BOOT_GUESTS, ...BUILT, ...THOROUGH }, () => {
  let berth: Installation;
  const shell = new ExampleShell();
  const bearer = () => ({ authorization: `Bearer ${shell.key_token}` });
  let url: URL;

  /** A request to Jupyter's API, through the instance's URL. */
  const ask = (path: string, ...options: string[]) =>
    shell.done(
      shell.folder,
      [
        "curl -sS --fail-with-body -H 'Authorization: Bearer '$BERTH_API_KEY",
        ...options,
        `'${url.origin}${path}'`,
      ].join(' '),
    );

  before(async () => {
    berth = await Installation.start();
    await shell.login(berth, 'instances:read instances:write vm:read vm:write');
    const sources = join(shell.folder, 'sources.list');
    // The mirror that this machine's apt uses.
    const script = `work=$1; fail() { echo "$1" >&2; exit 1; }; . ${join(import.meta.dirname, '..', '..', 'guest', 'apt-sources.sh')}; find_debian_sources "$work" > /dev/null`;
    execFileSync('bash', ['-euo', 'pipefail', '-c', script, 'sources', shell.folder]);
    const archive = join(shell.folder, 'notebook.tar');
    execFileSync(shell.example('notebook/image'), [archive, sources], {
      stdio: ['ignore', 'ignore', 'inherit'],
    });
    const added = await berth.cli('image', 'add', 'notebook', archive);
    assert.equal(added.code, 0, added.err);
  }, BUILT);
  after(() => berth?.dispose());

  test('it is at the URL that the script prints, without a password, for those with access', async () => {
    url = new URL((await shell.done(shell.folder, `${shell.example('notebook/notebook')} ada`)).trim());
    await untilWorks('Jupyter answers', () => ask('/api'));
    assert.match(await ask('/api'), /"version": "6\./);
    assert.equal(
      await shell.done(shell.folder, `curl -sS -o /dev/null -w '%{http_code}' ${url.origin}/tree`),
      '401',
    );
  });

  test('code runs in a kernel, over a WebSocket', async () => {
    assert.equal(await runCode('print(6 * 7)'), '42\n');
  });

  test('a request wakes it; its notebooks are there', async () => {
    await runCode("open('kept.txt', 'w').write('kept')");
    await shell.done(shell.folder, 'berth stop ada');
    await untilWorks('Jupyter answers', () => ask('/api'));
    assert.match(await ask('/api/contents'), /"kept\.txt"/);
  });

  /** Returns what `code` prints in a new kernel. Protocol: jupyter-client's messaging, version 5.3, over a WebSocket. */
  async function runCode(code: string): Promise<string> {
    const { xsrf, cookie } = await visit();
    const started = await ask(
      '/api/kernels',
      '-X POST',
      `-H 'X-XSRFToken: ${xsrf}'`,
      `-H 'Cookie: ${cookie}'`,
    );
    const { id } = JSON.parse(started) as { id: string };
    const socket = new WebSocket(`ws://127.0.0.1:${berth.http_port}/api/kernels/${id}/channels`, {
      headers: { ...bearer(), host: url.host },
    });
    await new Promise((resolve, reject) => socket.once('open', resolve).once('error', reject));
    const header = {
      msg_id: '1',
      session: 'test',
      username: 'test',
      msg_type: 'execute_request',
      version: '5.3',
    };
    const content = { code, silent: false, store_history: false, allow_stdin: false };
    socket.send(JSON.stringify({ header, parent_header: {}, metadata: {}, content, channel: 'shell' }));
    let printed = '';
    for await (const [data] of messagesOf(socket)) {
      const message = JSON.parse(String(data)) as { msg_type: string; content: Record<string, string> };
      if (message.msg_type === 'stream') printed += message.content['text'];
      if (message.msg_type === 'error') assert.fail(JSON.stringify(message.content));
      if (message.msg_type === 'execute_reply') break;
    }
    socket.terminate();
    return printed;
  }

  /** As a browser: the page sets the cookie that a POST has to repeat. */
  async function visit(): Promise<{ xsrf: string; cookie: string }> {
    const head = await ask('/tree', '-D -', '-o /dev/null');
    const xsrf = /_xsrf=([^;]+)/.exec(head)?.[1] ?? '';
    return { xsrf, cookie: `_xsrf=${xsrf}` };
  }
});

function messagesOf(socket: WebSocket): AsyncIterable<[WebSocket.RawData]> {
  return on(socket, 'message', { close: ['close'] }) as AsyncIterable<[WebSocket.RawData]>;
}
