/** The command line from the login to the same disk after a stop, with a real VM and OpenSSH. One story, two boots. */
import assert from 'node:assert/strict';
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { readFirstLogin } from '../../src/launcher/data-folder.ts';
import { Cli } from '../support/cli.ts';
import { CANNOT_BOOT_GUESTS, type Installation } from '../support/installation.ts';
import { borrowInstallation, returnInstallation } from '../support/shared-installation.ts';

describe('the command line', { skip: CANNOT_BOOT_GUESTS, timeout: 590_000 }, () => {
  let berth: Installation;
  const cli = new Cli();
  /** As a person would give it: their key is no default one here, and ssh takes its home from the password file. */
  const KEY = () => ['-i', join(cli.home, 'key')];

  before(async () => {
    berth = await borrowInstallation();
    cli.env['BERTH_URL'] = berth.origin;
    cli.env['BERTH_DATA_DIR'] = berth.data_dir;
    mkdirSync(join(cli.home, '.ssh'), { mode: 0o700 });
    copyFileSync(berth.ssh.key_path, join(cli.home, 'key'));
  });
  after(returnInstallation);

  test('the administrator logs in on the server without a name', async () => {
    const login = await readFirstLogin(berth.paths);
    const ran = await cli.run(['login', '--password-stdin'], login?.password);
    assert.equal(ran.code, 0, ran.err);
    assert.match(ran.out, /as admin@localhost, in /);
    const found = await cli.done('doctor');
    assert.match(found, /^ok {2}ready/m);
    assert.match(found, /^! {3}mail .*\n {4}next: BERTH_SMTP_URL/m);
  });

  test('create --start creates and boots; ssh passes input, output and exit code', async () => {
    const made = await cli.done(
      'create',
      'web',
      '--memory',
      '256m',
      '--disk',
      '2',
      '--auto-flush',
      'off',
      '--start',
    );
    assert.equal(made, 'Created and started web. Log in: berth ssh web\n');
    const uname = await cli.run(['ssh', 'web', ...KEY(), 'uname', '-s']);
    assert.deepEqual([uname.code, uname.out], [0, 'Linux\n'], uname.err);
    const forwarded = await cli.run(['ssh', 'web', ...KEY(), '-W', 'localhost:22']);
    assert.match(forwarded.out, /^SSH-2\.0-/, "ssh's own option, after the name");
    const executed = await cli.run(['exec', 'web', 'uname', '-s']);
    assert.deepEqual([executed.code, executed.out], [0, 'Linux\n'], executed.err);
    const written = await cli.run(['ssh', ...KEY(), 'web', '--', 'cat > /srv/note; exit 7'], 'kept\n');
    assert.equal(written.code, 7, written.err);
  });

  test('another host key than the instance’s is refused', async () => {
    const folder = join(cli.home, '.config', 'berth', 'known_hosts');
    const [id = ''] = (await cli.done('show', 'web', '-q')).trim().split('\n');
    const lines = readFileSync(join(folder, id), 'utf8');
    const block = await cli.done('ssh-config', '--print', 'web');
    const config = join(cli.home, 'config');
    writeFileSync(config, block.replace(join(folder, id), join(cli.home, 'wrong')));
    writeFileSync(
      join(cli.home, 'wrong'),
      lines.replace(/AAAA\S+/g, berth.ssh.public_key.split(' ')[1] ?? ''),
    );
    const { execFile } = await import('node:child_process');
    const refused = await new Promise<string>((resolve) => {
      execFile(
        'ssh',
        ['-F', config, '-o', 'BatchMode=yes', ...KEY(), 'web.berth', 'true'],
        (_error, _out, err) => resolve(err),
      );
    });
    assert.match(refused, /Host key verification failed|REMOTE HOST IDENTIFICATION/);
  });

  test('flush, stop, and ssh again: it starts by itself, and the disk is the same', async () => {
    // The first flush comes by itself just after the first boot; this is for one of ours.
    assert.equal((await cli.run(['ssh', ...KEY(), 'web', '--', 'echo more > /srv/more; sync'])).code, 0);
    assert.match(
      await cli.done('flush', 'web'),
      /^web: .* saved as generation \d+, .* consistency filesystem\n$/,
    );
    assert.match(await cli.done('stop', 'web'), /^web is stopped; all saved \(/);
    assert.match(await cli.done('ls'), /^web +stopped +1 +256 MiB +2 GiB +all saved /m);
    // A key that lies where this environment's home says, which ssh itself would not look at.
    for (const end of ['', '.pub']) {
      copyFileSync(`${berth.ssh.key_path}${end}`, join(cli.home, '.ssh', `id_ed25519${end}`));
    }
    const read = await cli.run(['ssh', 'web', '--', 'cat', '/srv/note']);
    assert.deepEqual([read.code, read.out], [0, 'kept\n'], read.err);
  });

  test('rm deletes it', async () => {
    assert.equal(await cli.done('rm', '-y', 'web'), 'Deleted web.\n');
    assert.equal(await cli.done('ls', '-q'), '');
  });
});
