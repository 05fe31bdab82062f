/**
 * Types every `sh` block of README.md, docs/tutorial.md and docs/curl.md, in order, in one shell per document, against an
 * installation that `npm start` runs, with real VMs. Only the tutorial runs always; the others boot two more VMs each and run
 * in turn (`test/support/thorough.ts`).
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import { thorough } from '../support/thorough.ts';

const THOROUGH = thorough(import.meta.filename);

const PROJECT = join(import.meta.dirname, '..', '..');
const LOCAL = 'http://127.0.0.1:7400';
/** Said between a block and its output, so that a failure names its block. */
const MARK = '### block';

const read = (path: string) => readFileSync(join(PROJECT, path), 'utf8');
const blocksOf = (path: string) =>
  [...read(path).matchAll(/^```sh\n(.*?)^```$/gms)].map(([, block = '']) => block);

describe('the commands of the documents', { skip: CANNOT_BOOT_GUESTS, timeout: 580_000 }, () => {
  let berth: Installation;
  let home: string;

  before(async () => {
    const { scripts } = JSON.parse(read('package.json')) as { scripts: Record<string, string> };
    assert.equal(scripts['start'], 'exec sh bin/start.sh');
    berth = await Installation.start({ program: ['sh', join(PROJECT, 'bin', 'start.sh')] });
    home = mkdtempSync(join(tmpdir(), 'berth-reader-'));
    // The project's folder as the reader has it, but for the data of this test.
    symlinkSync(join(PROJECT, 'bin'), join(home, 'bin'));
    symlinkSync(berth.data_dir, join(home, 'data'));
    mkdirSync(join(home, '.ssh'), { mode: 0o700 });
    mkdirSync(join(home, 'tools'));
    // ssh takes its home from the password file, whatever HOME says.
    writeFileSync(
      join(home, 'ssh_config'),
      `Include ${home}/.ssh/config\nHost *\n  IdentityFile ${home}/.ssh/id_ed25519\n  UserKnownHostsFile ${home}/.ssh/known_hosts\n  BatchMode yes\n`,
    );
    writeFileSync(join(home, 'tools', 'ssh'), `#!/bin/sh\nexec /usr/bin/ssh -F ${home}/ssh_config "$@"\n`);
    chmodSync(join(home, 'tools', 'ssh'), 0o755);
  });
  after(async () => {
    await berth?.dispose();
    if (home !== undefined) rmSync(home, { recursive: true, force: true });
  });

  /** @returns what each block printed */
  async function type(blocks: readonly string[], input = ''): Promise<string[]> {
    const script = blocks
      .map((block) => `echo '${MARK}'; echo '${MARK}' >&2\n${block.replaceAll(LOCAL, berth.origin)}`)
      .join('\n');
    const child = spawn('bash', ['-euo', 'pipefail', '-c', script], {
      cwd: home,
      env: {
        PATH: `${join(home, 'tools')}:${process.env['PATH']}`,
        HOME: home,
        BERTH_URL: berth.origin,
      },
      stdio: ['pipe', 'pipe', 'pipe'],
    });
    child.stdin.end(input);
    let [out, err] = ['', ''];
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      out += text;
    });
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      err += text;
    });
    const code = await new Promise((resolve) => child.once('close', resolve));
    const printed = out.split(`${MARK}\n`).slice(1);
    assert.equal(code, 0, `${blocks[printed.length - 1]}\n${err.split(MARK).at(-1)}\n${printed.at(-1)}`);
    return printed;
  }

  test('docs/tutorial.md creates a durable machine and undoes a mistake', async () => {
    const [start, ...rest] = blocksOf('docs/tutorial.md');
    assert.equal(start, 'npm start\n');
    const printed = await type(rest);
    assert.match(printed[0] ?? '', /^You are logged in at .* as admin@localhost/);
    assert.match(printed[0] ?? '', /Created an SSH key/);
    assert.ok(printed.some((text) => text.endsWith('remember me\n')));
    assert.ok(printed.some((text) => /^copy +stopped/m.test(text)));
    assert.ok(printed.some((text) => text.endsWith('\nweb\n')));
    assert.equal(printed.at(-1), 'Deleted web, copy.\n');
  });

  test('README.md leads to a machine with two commands', THOROUGH, async () => {
    const [start, up = '', ...more] = blocksOf('README.md');
    assert.equal(start, 'npm start\n');
    assert.deepEqual(more, []);
    const printed = await type([up, 'bin/berth stop first\n']);
    assert.match(printed.at(-1) ?? '', /^first is stopped; all saved/m);
  });

  test('docs/curl.md does the same with only curl and ssh', THOROUGH, async () => {
    const { password } = JSON.parse(readFileSync(berth.paths.first_login, 'utf8')) as { password: string };
    const printed = await type(blocksOf('docs/curl.md'), `${password}\n`);
    assert.match(printed.join(''), /"consistency":"filesystem"/);
    assert.match(printed.join(''), /"state":"stopped"/);
  });
});
