/**
 * A reader types every block of docs/operating/install.md, in order, on the machines that the page names: each in namespaces of
 * its own, with the page's addresses. `EDITS` and the `edited` calls are all that the reader changes; test/support/install-page.ts
 * says what machines in namespaces have in place of systemd and of a package archive. Beside the page's machines there are `laptop`
 * (“your own machine”) and `bucket`. A package is built first, and a guest boots: some minutes.
 */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { promisify } from 'node:util';
import { certificate } from '../support/certificate.ts';
import { type Edit, edited, InstallPage, prepare, type } from '../support/install-page.ts';
import { type Machine, MachineNetwork } from '../support/machine.ts';
import { patroniMissing } from '../support/patroni.ts';
import { thorough } from '../support/thorough.ts';
import { until, untilWorks } from '../support/waiting.ts';

const THOROUGH = thorough(import.meta.filename);

const PROJECT = join(import.meta.dirname, '..', '..');
const NUMBERS = {
  ...{
    balancer: 10,
    'control-1': 11,
    'control-2': 12,
    'front-1': 21,
    'front-2': 22,
    'rack-1': 31,
    'rack-2': 32,
  },
  ...{ 'db-1': 41, 'db-2': 42, 'db-3': 43, bucket: 90, laptop: 100 },
};
type Name = keyof typeof NUMBERS;
const NAMES = Object.keys(NUMBERS) as Name[];

const HOSTS = `10.0.0.10 berth.example.org
10.0.0.21 ssh.berth.example.org
10.0.0.22 ssh.berth.example.org
10.0.0.90 s3.example.org
`;
const [DATABASE, FIRST, SECOND] = ['db27of88fleet', 'a long first password 27', 'a long second password 88'];

/** What is different on each machine that a block is typed on, and what only the reader knows. */
const EDITS = {
  database: (node: number): Edit[] => [
    { from: 'name=db-1 address=10.0.0.41', to: `name=db-${node} address=10.0.0.4${node}`, why: 'its own' },
    { from: 'PASSWORD-1', to: 'first11', why: 'a password' },
    { from: 'PASSWORD-2', to: 'second22', why: 'a password' },
    { from: 'PASSWORD-3', to: 'third33', why: 'a password' },
  ],
  role: [{ from: 'A-LONG-PASSWORD', to: DATABASE, why: 'a password' }],
  control: (node: number, secret_key: string, bucket: Record<string, string>): Edit[] => [
    { from: 'A-LONG-PASSWORD', to: DATABASE, why: 'a password' },
    { from: 'BERTH_SECRET_KEY=…', to: `BERTH_SECRET_KEY=${secret_key}`, why: 'made in the block before' },
    { from: 'BERTH_S3_BUCKET=berth', to: `BERTH_S3_BUCKET=${bucket['BERTH_S3_BUCKET']}`, why: 'the bucket' },
    // The test's store speaks no TLS.
    { from: 'https://s3.example.org', to: `${bucket['BERTH_S3_ENDPOINT']}`, why: 'the bucket' },
    { from: 'KEY_ID=…', to: `KEY_ID=${bucket['AWS_ACCESS_KEY_ID']}`, why: "the bucket's credentials" },
    {
      from: 'ACCESS_KEY=…',
      to: `ACCESS_KEY=${bucket['AWS_SECRET_ACCESS_KEY']}`,
      why: "the bucket's credentials",
    },
    { from: 'BERTH_SMTP_URL=smtps://berth:…@mail.example.org\n', to: '', why: 'there is no mail server' },
    { from: 'A LONG FIRST PASSWORD', to: FIRST, why: 'a password' },
    { from: '=10.0.0.11:', to: `=10.0.0.1${node}:`, why: 'the three lines that differ' },
  ],
  balancer: [
    {
      from: 'haproxy -c -f',
      to: "sed -i 's/maxconn 20000/maxconn 2000/' /etc/haproxy/haproxy.cfg && haproxy -c -f",
      why: 'this machine may allow fewer open files',
    },
  ],
  login: [
    {
      from: 'berth login --url https://berth.example.org --email ada@example.org',
      to: `echo '${FIRST}' | berth login --url https://berth.example.org --email ada@example.org --password-stdin`,
      why: 'nobody is at a terminal',
    },
    {
      from: 'berth account password',
      to: `printf '%s\\n' '${FIRST}' '${SECOND}' | berth account password --password-stdin`,
      why: 'nobody is at a terminal',
    },
  ],
  host: (node: number): Edit[] => [
    { from: '--cpus 32 --memory 120', to: '--cpus 2 --memory 3', why: 'its size' },
    { from: 'rack-1', to: `rack-${node}`, why: 'its own name' },
  ],
  named: (from: string, to: string): Edit[] => [{ from, to, why: 'its own name' }],
} as const;

const missing = patroniMissing();
const only = missing === null ? THOROUGH : { skip: missing };

describe('docs/operating/install.md', { ...only, timeout: 1_200_000 }, () => {
  const page = new InstallPage();
  const machines = new Map<Name, Machine>();
  let network: MachineNetwork;
  let bucket: Record<string, string>;
  let apps: { readonly key: Buffer; readonly cert: Buffer };

  const at = (name: Name) => machines.get(name) ?? assert.fail(name);
  const on = (name: Name, block: string) => type(at(name), block);
  /** With a home of its own, and the authority that browsers and Node.js would know. */
  const onLaptop = (block: string) =>
    type(at('laptop'), `export HOME=/root/ada NODE_EXTRA_CA_CERTS=/root/authority.pem\n${block}`);
  const both = (work: (node: 1 | 2) => Promise<unknown>) => Promise.all([work(1), work(2)]);
  const copy = async (path: string, from: Name, to: Name) =>
    at(to).write(path, await at(from).run('cat', [path]));

  before(async () => {
    const build = join(PROJECT, 'packaging', 'debian', 'build.sh');
    // npm pack makes dist/, also for test/launcher/packages.test.ts.
    const lock = join(PROJECT, '.cache', 'npm-pack.lock');
    const deb = (
      await promisify(execFile)('flock', [lock, build, join(PROJECT, '.cache'), 'none'])
    ).stdout.trim();
    network = await MachineNetwork.open();
    const { key, cert } = await certificate({ after }, 'berth.example.org');
    apps = await certificate({ after }, '*.apps.example.com');
    for (const name of NAMES) {
      const machine = await network.machine(name, NUMBERS[name]);
      machines.set(name, machine);
      await prepare(machine, { hosts: HOSTS, authority: String(cert), deb });
    }
    const program = join(PROJECT, 'test', 'support', 'bucket-program.ts');
    at('bucket').spawn('bucket', process.execPath, [program, 'http://s3.example.org:9000', '9000']);
    const settings = () => /^\{.*\}$/m.exec(at('bucket').log('bucket'))?.[0];
    bucket = JSON.parse(await until('there is a bucket', settings)) as Record<string, string>;
    await at('balancer').write('/root/berth.pem', `${cert}${key}`, 0o600);
    await at('laptop').sh(`mkdir -p -m 700 /root/ada/.ssh && ln -s ${PROJECT}/bin/berth /usr/local/bin/berth
      ssh-keygen -q -t ed25519 -N '' -f /root/ada/.ssh/id_ed25519`);
  });
  after(() => network?.close());

  test('1. PostgreSQL', async () => {
    const block = page.next('name=db-1');
    await Promise.all([1, 2, 3].map((node) => on(`db-${node}` as Name, edited(block, EDITS.database(node)))));
    const list = page.next('patronictl');
    const leader = await until('one leader, one synchronous standby, one replica', async () => {
      const said = await on('db-1', list);
      const all =
        /Sync Standby \| (running|streaming)/.test(said) && /Replica +\| (running|streaming)/.test(said);
      return all && /\| (db-\d) +\| \S+ +\| Leader/.exec(said)?.[1];
    });
    await on(leader as Name, edited(page.next('su postgres'), EDITS.role));
  });

  test('3. Control planes', async () => {
    const secret_key = (await on('control-1', page.next('openssl rand'))).trim();
    const block = page.next('systemctl mask berth');
    await both(async (node) => {
      const said = await on(`control-${node}`, edited(block, EDITS.control(node, secret_key, bucket)));
      assert.doesNotMatch(said, /berth starts/, 'the package starts nothing where its service is masked');
    });
    assert.match(
      await on('control-1', page.next('systemctl start berth-migrate')),
      /the database is up to date/,
    );
    const start = page.next('systemctl enable --now berth-control-plane');
    await both((node) => on(`control-${node}`, start));
  });

  test('4. The balancer', async () => {
    await on('balancer', edited(page.next('apt-get install haproxy'), EDITS.balancer));
    const asked = page.next('curl');
    await untilWorks('a control plane answers', async () =>
      assert.match(await on('balancer', asked), /"ready"/),
    );
    await onLaptop(edited(page.next('berth login'), EDITS.login));
    const forget = page.next('sed -i');
    await both((node) => on(`control-${node}`, forget));
    assert.doesNotMatch(await at('control-2').run('cat', ['/etc/berth/control-plane.env']), /ADMIN/);
  });

  let with_settings = '';

  test('5. Hosts', async () => {
    const add = page.next('set -a; . /etc/berth/control-plane.env; set +a\nberth host add');
    const install = page.next('systemctl mask berth');
    with_settings = `${add.split('\n')[0]}\n`;
    await both(async (node) => {
      await on('control-1', edited(add, EDITS.host(node)));
      await copy(`/root/rack-${node}.token`, 'control-1', `rack-${node}`);
      // What tests have built before, where the host's first start would build it.
      await at(`rack-${node}`).sh(`mkdir -p /var/lib/berth/images
        cp -a --sparse=always ${PROJECT}/.cache/images/debian-12 /var/lib/berth/images/`);
      await on(`rack-${node}`, edited(install, EDITS.named('rack-1', `rack-${node}`)));
    });
    const list = with_settings + page.next('berth host ls');
    await untilWorks('the hosts are up', async () =>
      assert.match(
        await on('control-1', list),
        /rack-1 +up [\s\S]*rack-2 +up |rack-2 +up [\s\S]*rack-1 +up /,
      ),
    );
  });

  test('6. Ingresses', async () => {
    const add = with_settings + page.next('berth ingress add');
    const install = page.next('systemctl mask berth');
    await both(async (node) => {
      const name = `front-${node}` as const;
      await on('control-1', edited(add, EDITS.named('front-1', name)));
      await copy(`/root/${name}.token`, 'control-1', name);
      await at(name).write('/root/apps.crt', String(apps.cert));
      await at(name).write('/root/apps.key', String(apps.key), 0o600);
      await on(name, edited(install, EDITS.named('front-1', name)));
    });
    const list = with_settings + page.next('berth ingress ls');
    await untilWorks('the ingresses are up', async () =>
      assert.match(
        await on('control-1', list),
        /front-1 +up [\s\S]*front-2 +up |front-2 +up [\s\S]*front-1 +up /,
      ),
    );
  });

  test('7. Try it', async (t) => {
    const began = performance.now();
    t.diagnostic(await onLaptop(page.next('berth ssh-key add\nberth create web')));
    t.diagnostic(`the first guest was there and flushed after ${Math.round(performance.now() - began)} ms`);
    await on('control-1', page.next('systemctl stop'));
    const again = page.next('berth ssh web true && berth ls');
    assert.match(await onLaptop(again), /web +running/);
    // Beyond the page: an ingress that is away breaks only its own connections.
    await on('front-1', 'systemctl stop berth-ingress');
    await onLaptop(again);
    await on('control-1', page.next('systemctl start'));
    assert.deepEqual(page.left, [], 'each block was typed');
  });
});
