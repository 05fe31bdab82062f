/**
 * The package of `npm pack`, installed in an empty folder, and the Debian package, installed below a temporary root. Only in
 * turn (`test/support/thorough.ts`) is a registry used, for npm's installation.
 */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { chmod, mkdir, mkdtemp, readdir, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { promisify } from 'node:util';
import { productionPackages } from '../../bin/production-packages.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import { thorough } from '../support/thorough.ts';

const THOROUGH = thorough(import.meta.filename);

const run = promisify(execFile);
const PROJECT = join(import.meta.dirname, '..', '..');

describe('the packages', { skip: CANNOT_BOOT_GUESTS, timeout: 600_000 }, () => {
  let folder: string;
  let tarball: string;
  let installation: Installation | undefined;
  after(async () => {
    await installation?.dispose();
    if (folder !== undefined) await rm(folder, { recursive: true, force: true });
  });

  test('npm pack makes a package of JavaScript with everything that is read at run time', async () => {
    folder = await mkdtemp(join(tmpdir(), 'berth-packages-'));
    // It makes dist/, as test/deploy/install-page.test.ts does.
    const lock = join(PROJECT, '.cache', 'npm-pack.lock');
    await run('flock', [lock, 'npm', 'pack', '--pack-destination', folder], { cwd: PROJECT });
    const [name = ''] = await readdir(folder);
    assert.match(name, /^berth-\d+\.\d+\.\d+\.tgz$/);
    tarball = join(folder, name);
    const files = (await run('tar', ['-tzf', tarball])).stdout.trim().split('\n');
    const wanted = ['bin/berth', 'dist/src/main.js', 'dist/src/cli/main.js', 'dist/client/src/berth.js'];
    wanted.push(
      'dist/package.json',
      'dist/guest/build.sh',
      'dist/bin/debian-packages.txt',
      'openapi/v1.json',
    );
    wanted.push('README.md', 'LICENSE', 'docs/cli.md', 'dist/src/disk-format/compress-worker.js');
    wanted.push('dist/src/host/network/open-tap.pl');
    wanted.push('dist/console/dist/index.html', 'dist/site/dist/index.html', 'dist/site/dist/cli.html.br');
    for (const path of wanted) assert.ok(files.includes(`package/${path}`), path);
    const sql = (await readdir(join(PROJECT, 'src', 'control-plane', 'db', 'sql'))).filter((each) =>
      each.endsWith('.sql'),
    );
    for (const each of sql) assert.ok(files.includes(`package/dist/src/control-plane/db/sql/${each}`), each);
    assert.deepEqual(
      files.filter((path) => /\.tsx?$|\.test\.|node_modules|\/data\/|\.cache/.test(path)),
      [],
    );
  });

  test('installed in an empty folder it prints help, reports a wrong setting, runs, and stops', async () => {
    const home = join(folder, 'home');
    const data_dir = { BERTH_DATA_DIR: join(folder, 'none'), HOME: home };
    await mkdir(home);
    await installIn(home, tarball);
    const berth = join(home, 'node_modules', '.bin', 'berth');
    const say = (words: string[], env: Record<string, string>) =>
      run(berth, words, { cwd: home, env: { PATH: process.env['PATH'] ?? '', ...env } });
    assert.match((await say(['--help'], data_dir)).stdout, /^usage: berth COMMAND/);
    const nowhere = { ...data_dir, BERTH_URL: 'http://127.0.0.1:9' };
    const { stdout } = await say(['doctor'], nowhere).catch((error: { stdout: string; code: number }) => {
      assert.equal(error.code, 1);
      return error;
    });
    assert.match(stdout, /^NO {2}server .*does not answer\n {4}next: .*berth server/m);

    installation = await Installation.start({ program: [berth, 'server'] });
    // It asks for no password: the first one is on this machine.
    const env = { HOME: home, BERTH_URL: installation.origin, BERTH_DATA_DIR: installation.data_dir };
    assert.match((await say(['login'], env)).stdout, /^You are logged in .* as admin@localhost/);
    assert.match((await say(['doctor'], env)).stdout, /^ok {2}ready/m);
    assert.match((await say(['create', 'web'], env)).stdout, /^Created web/);
    assert.equal((await say(['ls', '-q'], env)).stdout.trim(), 'web');
    for (const [path, part] of [
      ['/', '<title>Berth</title>'],
      ['/docs', 'Berth'],
      ['/docs/cli', 'berth login'],
      ['/docs/api', 'askForDeviceLogin'],
    ] as const) {
      const page = await fetch(installation.origin + path, { headers: { accept: 'text/html' } });
      assert.equal(page.status, 200, path);
      assert.ok((await page.text()).includes(part), path);
    }
    const { mode } = await stat(installation.paths.first_login);
    assert.equal(mode & 0o777, 0o600);
    assert.match(
      installation.output,
      /^berth ready at \S+\n(?:.*\n)*?berth: first administrator: admin@localhost, password: \w{20}, shown this once/m,
    );
    assert.equal(await installation.stop(), 0);
  });

  test(
    'the Debian package installs below a root, runs there, and keeps data until it is purged',
    THOROUGH,
    async () => {
      const build = join(PROJECT, 'packaging', 'debian', 'build.sh');
      const deb = (await run(build, [folder, 'none', tarball])).stdout.trim();
      const control = (await run('dpkg-deb', ['--field', deb])).stdout;
      const listed = await readFile(join(PROJECT, 'bin', 'debian-packages.txt'), 'utf8');
      for (const [, name] of listed.matchAll(/^([a-z][\w.+-]+)\s/gm)) {
        assert.match(control, new RegExp(`^Depends: .*\\b${name}\\b`, 'm'));
      }
      const contents = (await run('dpkg-deb', ['--contents', deb], { maxBuffer: 1 << 26 })).stdout.split(
        '\n',
      );
      assert.deepEqual(
        contents.filter((line) => line !== '' && !/^[-dl]\S+ root\/root /.test(line)),
        [],
        'all is root’s',
      );
      assert.deepEqual(
        contents.filter((line) => /^[-d](.....w|.......w)/.test(line) || /^-..[sS]/.test(line)),
        [],
        'nothing is writable for others, nothing set-uid',
      );
      for (const path of [
        '/lib/systemd/system/berth.service',
        '/lib/systemd/system/berth-control-plane.service',
        '/etc/berth/berth.env',
        '/usr/bin/berth -> ',
        '/usr/lib/berth/dist/console/dist/index.html',
        '/usr/lib/berth/dist/site/dist/index.html',
        '/usr/share/doc/berth/docs/e2b.md',
      ]) {
        assert.ok(
          contents.some((line) => line.includes(` .${path}`)),
          path,
        );
      }

      const root = join(folder, 'root');
      await emptyDpkg(root);
      const dpkg = (...words: string[]) =>
        run('dpkg', [`--root=${root}`, '--force-script-chrootless', '--force-depends', ...words]);
      await dpkg('--install', deb);
      const berth = join(root, 'usr', 'bin', 'berth');
      const { version } = JSON.parse(await readFile(join(PROJECT, 'package.json'), 'utf8')) as {
        version: string;
      };
      assert.equal((await run(berth, ['version'])).stdout, `berth ${version}\n`);
      await verifyUnit(root);
      const disk = join(root, 'var', 'lib', 'berth', 'objects');
      await mkdir(disk, { recursive: true });
      await dpkg('--remove', 'berth');
      assert.ok(existsSync(disk) && existsSync(join(root, 'etc', 'berth', 'berth.env')));
      assert.ok(!existsSync(berth));
      await dpkg('--purge', 'berth');
      assert.ok(!existsSync(disk) && !existsSync(join(root, 'etc', 'berth', 'berth.env')));
    },
  );
});

/** As npm would: the package, what it needs beside it, its command. */
async function installIn(home: string, tarball: string): Promise<void> {
  await writeFile(join(home, 'package.json'), '{"name":"try","version":"1.0.0"}');
  if (!('skip' in THOROUGH)) {
    await run('npm', ['install', '--prefer-offline', '--no-audit', '--no-fund', tarball], { cwd: home });
    return;
  }
  const packages = productionPackages().filter((path) => path.lastIndexOf('node_modules/') === 0);
  await run('cp', ['-al', '--parents', ...packages, home], { cwd: PROJECT }).catch(() =>
    run('cp', ['-a', '--parents', ...packages, home], { cwd: PROJECT }),
  );
  const modules = join(home, 'node_modules');
  await mkdir(join(modules, 'berth'));
  await run('tar', ['-xzf', tarball, '-C', join(modules, 'berth'), '--strip-components=1']);
  await mkdir(join(modules, '.bin'));
  await symlink('../berth/bin/berth', join(modules, '.bin', 'berth'));
  const node = packages.find((path) => path.includes('/node-linux-'));
  if (node) await symlink(join('..', '..', node, 'bin', 'node'), join(modules, '.bin', 'node'));
}

async function emptyDpkg(root: string): Promise<void> {
  for (const each of ['info', 'updates', 'triggers', 'alternatives', 'parts']) {
    await mkdir(join(root, 'var', 'lib', 'dpkg', each), { recursive: true });
  }
  await writeFile(join(root, 'var', 'lib', 'dpkg', 'status'), '');
  await mkdir(join(root, 'var', 'log'), { recursive: true });
  await chmod(root, 0o755);
}

/** Where there is a systemd to ask. */
async function verifyUnit(root: string): Promise<void> {
  const analyze = await run('sh', ['-c', 'command -v systemd-analyze || true']);
  if (analyze.stdout === '') return;
  const unit = await readFile(join(root, 'lib', 'systemd', 'system', 'berth.service'), 'utf8');
  const copy = join(root, 'berth.service');
  await writeFile(copy, unit.replace('/usr/bin/berth', join(root, 'usr', 'bin', 'berth')));
  const { stdout, stderr } = await run('systemd-analyze', ['verify', '--man=no', copy]);
  const ours = `${stdout}${stderr}`.split('\n').filter((line) => line.includes('berth.service'));
  assert.deepEqual(ours, []);
  await rm(copy);
}
