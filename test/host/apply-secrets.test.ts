/** The script that a guest runs for its secrets, as it is, in a folder that looks like a guest of some distribution to it. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readlinkSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { GuestAgentError } from '../../src/host/guest/guest-agent.ts';
import { applySecrets } from '../../src/host/guest/guest-secrets.ts';
import { present } from '../../src/shared/assert.ts';

const pem = (text: string) => `-----BEGIN CERTIFICATE-----\n${text}\n-----END CERTIFICATE-----\n`;
const [THEIRS, OURS, NEXT] = [`# A comment\n${pem('theirs')}${pem('more')}`, pem('ours'), pem('next')];
const SOME = ['BERTH_SECRET_A=berth-secret-0'];
const DEBIAN = 'etc/ssl/certs/ca-certificates.crt';
const ANCHOR = 'usr/local/share/ca-certificates/berth-secrets.crt';

class Guest {
  readonly #root: string;
  /** Programs of the distribution, as functions of the shell. */
  readonly #programs: string;
  #ran: Record<string, unknown> = {};

  constructor(t: TestContext, files: Readonly<Record<string, string>>, programs = '') {
    this.#root = mkdtempSync(join(tmpdir(), 'berth-secrets-'));
    this.#programs = programs;
    t.after(() => rmSync(this.#root, { recursive: true }));
    for (const folder of ['usr/lib/berth', 'run/berth', 'dev', 'etc']) {
      mkdirSync(this.path(folder), { recursive: true });
    }
    const busybox = ['/usr/bin/busybox', '/bin/busybox'].find((path) => existsSync(path));
    copyFileSync(present(busybox, 'busybox'), this.path('usr/lib/berth/busybox'));
    writeFileSync(this.path('dev/null'), '');
    for (const [name, text] of Object.entries(files)) {
      mkdirSync(dirname(this.path(name)), { recursive: true });
      writeFileSync(this.path(name), text);
    }
  }

  path(name: string): string {
    return join(this.#root, name);
  }
  read(name: string): string | null {
    return existsSync(this.path(name)) ? readFileSync(this.path(name), 'utf8') : null;
  }
  apply(environment: readonly string[], certificate = OURS): Promise<void> {
    return applySecrets(this, { environment, certificate }, { timeout_ms: 10_000 });
  }

  async execute(command: string, args: Record<string, unknown>): Promise<unknown> {
    if (command === 'guest-file-open' && this.read(String(args['path'])) === null)
      throw new GuestAgentError(command, 'failed to open file: No such file or directory');
    if (command.startsWith('guest-file-')) return {};
    if (command === 'guest-exec-status') return this.#ran;
    const [shell, flag, script, ...rest] = args['arg'] as string[];
    const own = `flock() { :; }\n${this.#programs}\n${script}`;
    const words = [this.#root, String(args['path']), String(shell), String(flag), own, ...rest];
    const input = Buffer.from(String(args['input-data']), 'base64');
    const ran = spawnSync('/usr/sbin/chroot', words, { env: {}, input });
    const [out, err] = [ran.stdout.toString('base64'), ran.stderr.toString('base64')];
    this.#ran = { exited: true, exitcode: ran.status, 'out-data': out, 'err-data': err };
    return { pid: 1 };
  }
}

const HASH = 'openssl() { echo 0123abcd; }';
const debian = (t: TestContext) =>
  new Guest(t, { [DEBIAN]: THEIRS, 'usr/local/share/ca-certificates/other': '' }, HASH);

test('Debian: environment, bundle, and what update-ca-certificates would make; nothing of it after the last secret', async (t) => {
  const guest = debian(t);
  await guest.apply(SOME);
  assert.equal(guest.read('run/berth/environment'), 'export BERTH_SECRET_A=berth-secret-0\n');
  assert.equal(guest.read('run/berth/secrets-ca.pem'), OURS);
  assert.equal(readlinkSync(guest.path('run/berth/ca-bundle.pem')), `/${DEBIAN}`);
  assert.equal(guest.read(DEBIAN), THEIRS + OURS);
  assert.equal(guest.read(ANCHOR), OURS);
  assert.equal(readlinkSync(guest.path('etc/ssl/certs/berth-secrets.pem')), `/${ANCHOR}`);
  assert.equal(readlinkSync(guest.path('etc/ssl/certs/0123abcd.0')), 'berth-secrets.pem');
  await guest.apply([]);
  for (const name of ['run/berth/environment', ANCHOR, 'etc/berth-secrets-ca.pem'])
    assert.equal(guest.read(name), null);
  assert.equal(guest.read(DEBIAN), THEIRS);
  assert.throws(() => readlinkSync(guest.path('etc/ssl/certs/0123abcd.0')));
  assert.throws(() => readlinkSync(guest.path('etc/ssl/certs/berth-secrets.pem')));
  // Old sessions still name it.
  assert.equal(readlinkSync(guest.path('run/berth/ca-bundle.pem')), `/${DEBIAN}`);
});

test('a guest that has the certificate is left as it is, also by a distribution that made its bundle anew', async (t) => {
  const guest = debian(t);
  await guest.apply(SOME);
  writeFileSync(guest.path(DEBIAN), OURS + THEIRS);
  await guest.apply([...SOME, 'B=2']);
  assert.equal(guest.read(DEBIAN), OURS + THEIRS);
  assert.match(guest.read('run/berth/environment') ?? '', /export B=2\n$/);
  await guest.apply([]);
  assert.equal(guest.read(DEBIAN), THEIRS);
});

test('the certificate of another installation is replaced', async (t) => {
  const guest = debian(t);
  await guest.apply(SOME);
  await guest.apply(SOME, NEXT);
  assert.equal(guest.read(DEBIAN), THEIRS + NEXT);
  assert.equal(guest.read(ANCHOR), NEXT);
});

test('a program interrupted before its end is repeated', async (t) => {
  const guest = debian(t);
  await guest.apply(SOME);
  rmSync(guest.path('etc/berth-secrets-ca.pem'));
  await guest.apply(SOME);
  assert.equal(guest.read(DEBIAN), THEIRS + OURS);
});

test("Fedora: the distribution's own program makes the bundle of its folder", async (t) => {
  const bundle = 'etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem';
  const folder = 'etc/pki/ca-trust/source/anchors';
  const program = '#!/usr/lib/berth/busybox sh\necho ran >> /updates\n';
  const guest = new Guest(t, {
    [bundle]: THEIRS,
    [`${folder}/README`]: '',
    'usr/bin/update-ca-trust': program,
  });
  chmodSync(guest.path('usr/bin/update-ca-trust'), 0o755);
  mkdirSync(guest.path('etc/pki/tls/certs'), { recursive: true });
  symlinkSync(`/${bundle}`, guest.path('etc/pki/tls/certs/ca-bundle.crt'));
  await guest.apply(SOME);
  assert.equal(guest.read(`${folder}/berth-secrets.crt`), OURS);
  assert.equal(readlinkSync(guest.path('run/berth/ca-bundle.pem')), `/${bundle}`);
  assert.equal(guest.read(bundle), THEIRS + OURS);
  await guest.apply([]);
  assert.equal(guest.read('updates'), 'ran\nran\n');
  assert.equal(guest.read(bundle), THEIRS);
});

test('an image without certificates has ours alone', async (t) => {
  const guest = new Guest(t, {});
  await guest.apply(SOME);
  assert.equal(readlinkSync(guest.path('run/berth/ca-bundle.pem')), '/run/berth/secrets-ca.pem');
  await guest.apply([]);
  assert.equal(guest.read('run/berth/environment'), null);
});

test('an older call that a hung guest agent executes late changes nothing', async (t) => {
  const guest = debian(t);
  const late = Date.now() + 3_600_000;
  writeFileSync(guest.path('run/berth/secrets.sequence'), `${late}\n`);
  await assert.rejects(guest.apply(SOME), /exit code 4/);
  assert.equal(guest.read('run/berth/environment'), null);
  await guest.apply(SOME);
  assert.match(guest.read('run/berth/environment') ?? '', /BERTH_SECRET_A/);
});
