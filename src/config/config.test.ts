import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { QUOTA_DEFAULTS } from '../shared/quotas.ts';
import { LISTEN_AT_NAMES, listenAddress } from '../shared/setting-values.ts';
import { type Config, localOrigin, parseConfig } from './config.ts';
import { SETTINGS } from './settings.ts';

function accepted(env: Record<string, string>): Config {
  const result = parseConfig(env, '/srv/berth');
  assert(result.ok, result.ok ? '' : result.problems.join('\n'));
  return result.config;
}

function problems(env: Record<string, string>): readonly string[] {
  const result = parseConfig(env, '/srv/berth');
  return result.ok ? [] : result.problems;
}

test('an empty environment gives the defaults of the contract', () => {
  assert.deepEqual(accepted({}), {
    data_dir: '/srv/berth/data',
    listen: { host: '127.0.0.1', port: 7400 },
    public_url: 'http://127.0.0.1:7400',
    hosts: [],
    tls: null,
    trusted_proxies: [],
    connections_per_address: 2_000,
    ssh: { hosts: ['127.0.0.1'], ports: { first: 22_000, last: 22_999 }, listen: LISTEN_AT_NAMES },
    http: { listen: { host: '127.0.0.1', port: 7480 }, domain: 'localhost', tls: null, url: null },
    admin: { email: 'admin@localhost', password: null },
    database_url: null,
    s3: null,
    encryption: true,
    accel: 'auto',
    guest_network: 'auto',
    secret_key: null,
    signups: 'closed',
    oidc: null,
    password_login: true,
    quotas: {
      instances: 20,
      cpus: 32,
      memory_mib: 65_536,
      disk_gib: 512,
      api_keys: 100,
      service_accounts: 50,
      webhooks: 20,
      streams: 100,
      organisations: 5,
      sessions: 50,
      ssh_keys: 50,
      factors: 10,
    },
    fast_start: true,
    rate_limits: { principal: 1_200, address: 60, changes: 20_000 },
    smtp_url: null,
    webhook_allow_cidrs: [],
    metrics_listen: null,
    host_lease_ms: 40_000,
    removal_delay_ms: 3_600_000,
    hosts_listen: null,
    hosts_url: null,
    join: null,
    ingress_join: null,
    log_level: 'info',
    traces: null,
  });
});

test('an empty variable counts as unset, whichever it is', () => {
  const env = Object.fromEntries(SETTINGS.map((name) => [name, '']));
  assert.deepEqual(accepted({ ...env, BERTH_NO_SUCH: '' }), accepted({}));
});

test('a database of somebody else keeps removed objects for a day', () => {
  assert.equal(accepted({ DATABASE_URL: 'postgres://berth@db/berth' }).removal_delay_ms, 24 * 3_600_000);
});

test('every setting is read', () => {
  const config = accepted({
    BERTH_DATA_DIR: '../state',
    BERTH_LISTEN: '[::]:8443',
    BERTH_PUBLIC_URL: 'https://berth.example.org/',
    BERTH_HOSTS: 'Berth.Internal, 10.0.0.7:7400,[FD00::7],fd00:0::8',
    BERTH_TLS_CERT: 'tls/cert.pem',
    BERTH_TLS_KEY: '/etc/berth/key.pem',
    BERTH_TRUSTED_PROXIES: '10.0.0.0/8, fd00::/8,192.0.2.7',
    BERTH_CONNECTIONS_PER_ADDRESS: '500',
    BERTH_SSH_HOST: 'ssh.example.org',
    BERTH_SSH_PORTS: '30000-30000',
    BERTH_ADMIN_EMAIL: 'Root@Example.org',
    BERTH_ADMIN_PASSWORD: 'twelve chars',
    DATABASE_URL: 'postgresql://u:p@db.example.org/berth?host=%2Frun%2Fpg',
    BERTH_DISK_ENCRYPTION: 'off',
    BERTH_ACCEL: 'tcg',
    BERTH_GUEST_NETWORK: 'user',
    BERTH_SECRET_KEY: Buffer.alloc(32, 7).toString('base64'),
    BERTH_SIGNUPS: 'open',
    BERTH_QUOTA_DEFAULTS: 'instances=3, cpus=unlimited,sessions=0',
    BERTH_FAST_START: 'off',
    BERTH_RATE_LIMITS: 'address=5',
    BERTH_SMTP_URL: 'smtps://u:p@mail.example.org:465',
    BERTH_WEBHOOK_ALLOW_CIDRS: '127.0.0.1/32',
    BERTH_METRICS_LISTEN: '127.0.0.1:9464',
    BERTH_HOST_LEASE_SECONDS: '90',
    BERTH_REMOVAL_DELAY_HOURS: '72',
    BERTH_HOSTS_LISTEN: '0.0.0.0:7500',
    BERTH_HOSTS_URL: 'https://plane-1.example.org:7500/',
    BERTH_S3_BUCKET: 'berth',
    BERTH_CONTROL_PLANE: 'https://10.0.0.1:7500/',
    BERTH_HOST_TOKEN_FILE: 'host-token',
    BERTH_INGRESS_TOKEN_FILE: 'ingress-token',
    BERTH_LOG_LEVEL: 'debug',
  });
  assert.equal(config.data_dir, '/srv/state');
  assert.deepEqual(config.listen, { host: '::', port: 8443 });
  assert.equal(config.public_url, 'https://berth.example.org');
  assert.deepEqual(config.hosts, ['berth.internal', '10.0.0.7', 'fd00::7', 'fd00::8']);
  assert.deepEqual(config.tls, { cert_path: '/srv/berth/tls/cert.pem', key_path: '/etc/berth/key.pem' });
  assert.equal(config.connections_per_address, 500);
  assert.deepEqual(config.trusted_proxies, [
    { address: '10.0.0.0', prefix: 8, family: 'ipv4' },
    { address: 'fd00::', prefix: 8, family: 'ipv6' },
    { address: '192.0.2.7', prefix: 32, family: 'ipv4' },
  ]);
  assert.deepEqual(
    [config.ssh.hosts, config.ssh.ports],
    [['ssh.example.org'], { first: 30_000, last: 30_000 }],
  );
  assert.deepEqual(config.admin, { email: 'root@example.org', password: 'twelve chars' });
  assert.equal(config.encryption, false);
  assert.equal(config.accel, 'tcg');
  assert.equal(config.guest_network, 'user');
  assert.deepEqual(config.secret_key, Buffer.alloc(32, 7));
  assert.equal(config.signups, 'open');
  assert.deepEqual(config.quotas, { ...QUOTA_DEFAULTS, instances: 3, cpus: null, sessions: 0 });
  assert.equal(config.fast_start, false);
  assert.deepEqual(config.rate_limits, { principal: 1_200, address: 5, changes: 20_000 });
  assert.deepEqual(config.metrics_listen, { host: '127.0.0.1', port: 9464 });
  assert.equal(config.host_lease_ms, 90_000);
  assert.equal(config.removal_delay_ms, 72 * 3_600_000);
  assert.deepEqual(config.hosts_listen, { host: '0.0.0.0', port: 7500 });
  assert.equal(config.hosts_url, 'https://plane-1.example.org:7500');
  assert.deepEqual(config.join, {
    control_plane: 'https://10.0.0.1:7500',
    token_path: '/srv/berth/host-token',
  });
  assert.equal(config.ingress_join?.token_path, '/srv/berth/ingress-token');
  assert.equal(config.log_level, 'debug');
  assert.equal(localOrigin(config), 'https://[::1]:8443');
});

const WRONG: readonly (readonly [string, string, RegExp])[] = [
  ['BERTH_METRICS_LISTEN', '9464', /^BERTH_METRICS_LISTEN: "9464" is not valid; expected HOST:PORT/],
  ['BERTH_HOST_LEASE_SECONDS', '2', /^BERTH_HOST_LEASE_SECONDS: "2" .*whole seconds from 3 to 3600/],
  ['BERTH_REMOVAL_DELAY_HOURS', '0', /^BERTH_REMOVAL_DELAY_HOURS: "0" .*whole hours from 1 to 8760/],
  ['BERTH_HOSTS_LISTEN', ':7500', /^BERTH_HOSTS_LISTEN: .*HOST:PORT/],
  ['BERTH_HOSTS_LISTEN', '0.0.0.0:7500', /^BERTH_S3_BUCKET is missing; .*several hosts need one bucket/],
  ['BERTH_HOSTS_URL', 'https://10.0.0.1:7500', /^BERTH_HOSTS_LISTEN is missing; BERTH_HOSTS_URL is set/],
  ['BERTH_HOSTS_URL', 'http://10.0.0.1:7500', /^BERTH_HOSTS_URL: .*an https origin/],
  ['BERTH_CONTROL_PLANE', 'https://10.0.0.1:7500', /^BERTH_HOST_TOKEN_FILE is missing/],
  ['BERTH_HOST_TOKEN_FILE', 'token', /^BERTH_CONTROL_PLANE is missing/],
  ['BERTH_INGRESS_TOKEN_FILE', 'token', /^BERTH_CONTROL_PLANE is missing/],
  ['BERTH_LISTEN', 'localhost', /^BERTH_LISTEN: "localhost" is not valid; expected HOST:PORT/],
  ['BERTH_LISTEN', '127.0.0.1:70000', /^BERTH_LISTEN: .*port from 1 to 65535/],
  ['BERTH_LISTEN', '::1:7400', /^BERTH_LISTEN: /],
  ['BERTH_LISTEN', '127.0.0.256:80', /^BERTH_LISTEN: /],
  ['BERTH_LISTEN', 'l27.0.0.1:7400', /^BERTH_LISTEN: /],
  ['BERTH_LISTEN', '[fe80::1%eth0]:7400', /^BERTH_LISTEN: /],
  ['BERTH_PUBLIC_URL', 'https://berth.example.org/app', /^BERTH_PUBLIC_URL: .*without path/],
  ['BERTH_PUBLIC_URL', 'ftp://berth.example.org', /^BERTH_PUBLIC_URL: /],
  ['BERTH_HOSTS', 'https://berth.example.org', /^BERTH_HOSTS: .*host names or addresses separated by commas/],
  ['BERTH_HOSTS', 'berth.internal,*.example.org', /^BERTH_HOSTS: /],
  ['BERTH_HOSTS', 'berth.internal:port', /^BERTH_HOSTS: /],
  ['BERTH_HOSTS', Array(65).fill('a').join(','), /^BERTH_HOSTS: .*at most 64/],
  ['BERTH_TLS_CERT', 'cert.pem', /^BERTH_TLS_KEY is missing/],
  ['BERTH_TLS_KEY', 'key.pem', /^BERTH_TLS_CERT is missing/],
  ['BERTH_HTTP_TLS_KEY', 'key.pem', /^BERTH_HTTP_TLS_CERT is missing/],
  ['BERTH_HTTP_LISTEN', '0.0.0.0:7480', /^BERTH_HTTP_LISTEN: .*BERTH_HTTP_TLS_CERT/],
  ['BERTH_HTTP_LISTEN', '127.0.0.1:7400', /another port than BERTH_LISTEN/],
  ['BERTH_HTTP_LISTEN', '127.0.0.1:22000', /a port outside BERTH_SSH_PORTS/],
  ['BERTH_HTTP_DOMAIN', '10.0.0.1', /^BERTH_HTTP_DOMAIN: .*a domain such as/],
  ['BERTH_HTTP_URL', 'apps.example.com', /^BERTH_HTTP_URL: /],
  ['BERTH_CONNECTIONS_PER_ADDRESS', '0', /^BERTH_CONNECTIONS_PER_ADDRESS: "0" .*from 1 to 1000000/],
  ['BERTH_TRUSTED_PROXIES', '10.0.0.0/33', /^BERTH_TRUSTED_PROXIES: .*CIDR/],
  ['BERTH_WEBHOOK_ALLOW_CIDRS', 'example.org', /^BERTH_WEBHOOK_ALLOW_CIDRS: .*CIDR/],
  ['BERTH_SSH_HOST', 'a b', /^BERTH_SSH_HOST: "a b"/],
  ['BERTH_SSH_HOST', 'a.example.org,', /^BERTH_SSH_HOST: .*separated by commas/],
  ['BERTH_SSH_HOST', 'a.example.org,A.example.org', /^BERTH_SSH_HOST: .*different ones/],
  ['BERTH_SSH_LISTEN', 'a.example.org=', /^BERTH_SSH_LISTEN: .*NAME=ADDRESS pairs/],
  ['BERTH_SSH_LISTEN', 'a.example.org=10.0.0.5,10.0.0.6', /^BERTH_SSH_LISTEN: /],
  ['BERTH_SSH_LISTEN', 'a.example.org=10.0.0.5,a.example.org=10.0.0.6', /^BERTH_SSH_LISTEN: /],
  ['BERTH_SSH_PORTS', '22', /^BERTH_SSH_PORTS: .*FIRST-LAST/],
  ['BERTH_SSH_PORTS', '300-200', /^BERTH_SSH_PORTS: /],
  ['BERTH_SSH_PORTS', '7000-7450', /^BERTH_SSH_PORTS: .*contains the port of BERTH_LISTEN/],
  ['BERTH_ADMIN_EMAIL', 'admin', /^BERTH_ADMIN_EMAIL: .*e-mail/],
  ['BERTH_ADMIN_PASSWORD', 'short', /^BERTH_ADMIN_PASSWORD: .*12 to 256 characters/],
  ['DATABASE_URL', 'mysql://localhost/berth', /^DATABASE_URL: .*postgres:\/\//],
  ['BERTH_DISK_ENCRYPTION', 'no', /^BERTH_DISK_ENCRYPTION: "no" is not valid; expected one of on, off$/],
  ['BERTH_ACCEL', 'hvf', /^BERTH_ACCEL: "hvf" is not valid; expected one of auto, kvm, tcg$/],
  ['BERTH_SECRET_KEY', 'abc', /^BERTH_SECRET_KEY: .*32 bytes/],
  ['BERTH_SIGNUPS', 'yes', /^BERTH_SIGNUPS: .*open, closed/],
  ['BERTH_GUEST_NETWORK', 'tap', /^BERTH_GUEST_NETWORK: .*auto, user/],
  ['BERTH_FAST_START', 'yes', /^BERTH_FAST_START: .*on, off/],
  ['BERTH_RATE_LIMITS', 'false', /^BERTH_RATE_LIMITS: .*on, off/],
  ['BERTH_RATE_LIMITS', 'address=0', /^BERTH_RATE_LIMITS: .*1 to 1000000/],
  ['BERTH_RATE_LIMITS', 'address=5,address=6', /^BERTH_RATE_LIMITS: .*one or more/],
  ['BERTH_RATE_LIMITS', 'principal=10,', /^BERTH_RATE_LIMITS: .*principal=1200,address=60/],
  [
    'BERTH_QUOTA_DEFAULTS',
    'instances=-1',
    /^BERTH_QUOTA_DEFAULTS: "instances=-1" is not valid; expected quotas such as/,
  ],
  ['BERTH_QUOTA_DEFAULTS', 'instances=none', /^BERTH_QUOTA_DEFAULTS: .*whole number or unlimited/],
  ['BERTH_QUOTA_DEFAULTS', 'instances=2147483648', /^BERTH_QUOTA_DEFAULTS: /],
  ['BERTH_QUOTA_DEFAULTS', 'instances=1,instances=2', /^BERTH_QUOTA_DEFAULTS: .*each once/],
  ['BERTH_QUOTA_DEFAULTS', 'ram=5', /^BERTH_QUOTA_DEFAULTS: .*memory_mib/],
  ['BERTH_QUOTA_DEFAULTS', '20', /^BERTH_QUOTA_DEFAULTS: /],
  ['BERTH_QUOTA_DEFAULTS', 'instances=20,', /^BERTH_QUOTA_DEFAULTS: /],
  ['BERTH_SMTP_URL', 'mail.example.org', /^BERTH_SMTP_URL: .*smtp:/],
  ['BERTH_LOG_LEVEL', 'loud', /^BERTH_LOG_LEVEL: /],
  ['BERTH_S3_BUCKET', 'Berth_1', /^BERTH_S3_BUCKET: "Berth_1" is not valid; expected a bucket name/],
  ['BERTH_S3_ENDPOINT', 'https://s3.example.org', /^BERTH_S3_BUCKET is missing/],
  ['BERTH_DATA_DIR', '/', /^BERTH_DATA_DIR: /],
  ['BERTH_DATA_DIR', '/srv/a,b', /^BERTH_DATA_DIR: .*commas/],
  ['BERTH_DATA_DIR', `/${'d'.repeat(60)}`, /^BERTH_DATA_DIR: .* 61 bytes; expected at most 54/],
];
for (const [name, value, line] of WRONG) {
  test(`${name}=${value.slice(0, 30)} is refused with one line that names it`, () => {
    const lines = problems({ [name]: value });
    assert.equal(lines.length, 1, lines.join('\n'));
    assert.match(lines[0] ?? '', line);
  });
}

test('a bucket takes its credentials from the variables of AWS, or leaves them to profiles and roles', () => {
  const S3 = { BERTH_S3_BUCKET: 'berth' };
  const none = { access_key_id: null, secret_access_key: null, session_token: null };
  assert.deepEqual(accepted(S3).s3, { bucket: 'berth', endpoint: null, region: 'us-east-1', ...none });
  const all = {
    ...S3,
    BERTH_S3_ENDPOINT: 'http://127.0.0.1:9000/',
    AWS_ACCESS_KEY_ID: 'id',
    AWS_SECRET_ACCESS_KEY: 'hidden',
    AWS_SESSION_TOKEN: 'token',
    AWS_DEFAULT_REGION: 'eu-west-1',
  };
  const expected = {
    bucket: 'berth',
    endpoint: 'http://127.0.0.1:9000',
    region: 'eu-west-1',
    access_key_id: 'id',
    secret_access_key: 'hidden',
    session_token: 'token',
  };
  assert.deepEqual(accepted(all).s3, expected);
  assert.equal(accepted({ ...all, AWS_REGION: 'eu-central-1' }).s3?.region, 'eu-central-1');
  assert.equal(accepted({ AWS_ACCESS_KEY_ID: 'id' }).s3, null, 'without a bucket they are somebody else’s');
});

test('half a pair of credentials and an invalid region are refused, a line each', () => {
  const S3 = { BERTH_S3_BUCKET: 'berth' };
  assert.deepEqual(problems({ ...S3, AWS_SECRET_ACCESS_KEY: 'hidden' }), [
    'AWS_ACCESS_KEY_ID is missing; AWS_SECRET_ACCESS_KEY is set, and S3 needs both or neither',
  ]);
  assert.match(problems({ ...S3, AWS_ACCESS_KEY_ID: 'id' })[0] ?? '', /^AWS_SECRET_ACCESS_KEY is missing/);
  assert.match(problems({ ...S3, AWS_REGION: 'a/b' })[0] ?? '', /^AWS_REGION: "a\/b" is not valid/);
});

test('several names of SSH addresses need an address each to listen at', () => {
  const names = { BERTH_SSH_HOST: 'a.example.org, b.example.org' };
  assert.deepEqual(accepted(names).ssh.hosts, ['a.example.org', 'b.example.org']);
  assert.match(
    problems({ ...names, BERTH_SSH_LISTEN: '0.0.0.0' })[0] ?? '',
    /^BERTH_SSH_LISTEN: "0.0.0.0" is one address for the 2 names .*a.example.org=ADDRESS,b.example.org=ADDRESS/,
  );
  const { listen } = accepted({
    ...names,
    BERTH_SSH_LISTEN: 'a.example.org=10.0.0.5,b.example.org=::1',
  }).ssh;
  assert.equal(listenAddress(listen, 'a.example.org'), '10.0.0.5');
  assert.equal(listenAddress(listen, 'b.example.org'), '::1');
  assert.equal(listenAddress(listen, 'c.example.org'), null);
  const one = accepted({ BERTH_SSH_HOST: 'a.example.org', BERTH_SSH_LISTEN: '0.0.0.0' }).ssh;
  assert.equal(listenAddress(one.listen, 'a.example.org'), '0.0.0.0');
});

test('all problems are reported at once', () => {
  assert.equal(problems({ BERTH_ACCEL: 'x', BERTH_SIGNUPS: 'x', BERTH_LISTN: 'x' }).length, 3);
});

test('a misspelt setting is refused with the nearest name', () => {
  assert.deepEqual(problems({ BERTH_LISTN: '127.0.0.1:1' }), [
    'BERTH_LISTN is unknown; did you mean BERTH_LISTEN?',
  ]);
  assert.match(
    problems({ BERTH_COMPLETELY_DIFFERENT_THING: '1' })[0] ?? '',
    /^BERTH_COMPLETELY.* is unknown;/,
  );
});

test("the tests' own variables and the command line's are not settings", () => {
  accepted({ BERTH_TEST_IMAGE_DIR: '/srv/image' });
  accepted({ BERTH_URL: 'https://elsewhere.example.org', BERTH_API_KEY: 'any', BERTH_PROFILE: 'work' });
});

test('an address other machines can reach needs TLS or an https public URL', () => {
  const open = { BERTH_LISTEN: '0.0.0.0:7400' };
  assert.match(problems(open)[0] ?? '', /^BERTH_LISTEN: .*BERTH_TLS_CERT and BERTH_TLS_KEY/);
  assert.equal(problems({ ...open, BERTH_PUBLIC_URL: 'http://berth.example.org' }).length, 1);
  accepted({ ...open, BERTH_PUBLIC_URL: 'https://berth.example.org' });
  accepted({ ...open, BERTH_TLS_CERT: 'c', BERTH_TLS_KEY: 'k' });
  for (const loopback of ['127.8.8.8:1', '[::1]:1', 'localhost:1']) accepted({ BERTH_LISTEN: loopback });
});

test('both spellings of a secret key give the same bytes', () => {
  fc.assert(
    fc.property(fc.uint8Array({ minLength: 32, maxLength: 32 }), (bytes) => {
      const key = Buffer.from(bytes);
      for (const text of [key.toString('hex'), key.toString('base64'), key.toString('base64url')]) {
        assert.deepEqual(accepted({ BERTH_SECRET_KEY: text }).secret_key, key);
      }
    }),
  );
});

test('any environment gives a configuration or lines, and no line repeats a secret', () => {
  const value = fc.oneof(
    fc.string({ maxLength: 80 }),
    fc.constantFrom('on', '::1', '127.0.0.1:80', 'https://x'),
  );
  const secret = fc.stringMatching(/^[a-zA-Z0-9]{1,11}$/).map((text) => `zq9${text}`);
  const environment = fc.tuple(fc.dictionary(fc.constantFrom(...SETTINGS), value), secret);
  fc.assert(
    fc.property(environment, ([env, hidden]) => {
      const secrets = {
        ...{ BERTH_SECRET_KEY: hidden, DATABASE_URL: hidden, BERTH_SMTP_URL: hidden },
        BERTH_OIDC_CLIENT_SECRET: hidden,
      };
      const result = parseConfig(
        { ...env, ...secrets, BERTH_ADMIN_PASSWORD: `s${hidden.slice(0, 9)}` },
        '/srv/berth',
      );
      assert(!result.ok);
      for (const line of result.problems) {
        assert(!line.includes('\n') && !line.includes(hidden), line);
        assert.match(line, /^(BERTH_|DATABASE_URL|OTEL_)/);
      }
    }),
  );
});

test('others reach a control plane where it listens to hosts, unless that is every address', () => {
  const urlOf = (listen: string) => {
    const parsed = parseConfig({ BERTH_HOSTS_LISTEN: listen, BERTH_S3_BUCKET: 'berth' }, '/');
    assert(parsed.ok);
    return parsed.config.hosts_url;
  };
  assert.equal(urlOf('10.0.0.1:7500'), 'https://10.0.0.1:7500');
  assert.equal(urlOf('[fd00::1]:7500'), 'https://[fd00::1]:7500');
  for (const every of ['0.0.0.0:7500', '[::]:7500']) assert.equal(urlOf(every), null);
});
