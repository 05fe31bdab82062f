/**
 * Describes each setting and its default, and renders `docs/settings.md` from that (`npm run documents`). Settings are
 * described nowhere else. A test compares the names with {@link SETTINGS}, and the defaults with those of
 * `parseConfig`.
 */
import { markdownTable } from '../shared/markdown-table.ts';
import { QUOTA_DEFAULTS, QUOTAS } from '../shared/quotas.ts';
import { DEFAULT_CONNECTIONS_PER_ADDRESS, DEFAULT_RATE_LIMITS, type Setting } from './settings.ts';

interface SettingText {
  /** A value that means the same as none; null: there is none, and `says` tells what happens without the setting. */
  readonly default: string | null;
  readonly says: string;
}

type Texts = Partial<Record<Setting, SettingText>>;

const pairs = (values: Readonly<Record<string, number | null>>, names: readonly string[]) =>
  names.map((name) => `${name}=${values[name] ?? 'unlimited'}`).join(',');

const ADDRESSES: Texts = {
  BERTH_DATA_DIR: {
    default: './data',
    says: 'The folder of everything that Berth keeps on this machine. As an absolute path it has at most 54 bytes.',
  },
  BERTH_LISTEN: {
    default: '127.0.0.1:7400',
    says: 'Where API, console and documentation listen. Another address needs TLS or an https `BERTH_PUBLIC_URL`.',
  },
  BERTH_PUBLIC_URL: {
    default: null,
    says: 'The origin that people use: mails link to it, and Berth answers to its name. Without it: the origin of `BERTH_LISTEN`. Set it if that is `0.0.0.0` or `::`.',
  },
  BERTH_HOSTS: {
    default: null,
    says: 'More names or addresses that Berth answers to, separated by commas (`berth.internal,10.0.0.7`), beside those of the public URL, of the loopback and of `BERTH_LISTEN`. Any other `Host` gets 421.',
  },
  BERTH_TLS_CERT: {
    default: null,
    says: 'A PEM file with the certificate of `BERTH_LISTEN`. Needs `BERTH_TLS_KEY`.',
  },
  BERTH_TLS_KEY: { default: null, says: 'A PEM file with its key.' },
  BERTH_TRUSTED_PROXIES: {
    default: null,
    says: 'Addresses and networks of proxies, separated by commas. Their `X-Forwarded-*` fields count.',
  },
  BERTH_CONNECTIONS_PER_ADDRESS: {
    default: String(DEFAULT_CONNECTIONS_PER_ADDRESS),
    says: 'Open connections of an IPv4 address or an IPv6 /64 to the API, to the listener of hosts, to HTTP ports, and to SSH. `BERTH_TRUSTED_PROXIES` are exempt, so name TCP balancers there, too ([open files](../SECURITY.md#open-files)).',
  },
};

const PORTS: Texts = {
  BERTH_SSH_HOST: {
    default: '127.0.0.1',
    says: 'The name or address in the SSH addresses of instances. Several names, `a.example.org,b.example.org`: each has every port, and new instances get all of them in turn.',
  },
  BERTH_SSH_PORTS: { default: '22000-22999', says: 'The ports of SSH addresses.' },
  BERTH_SSH_LISTEN: {
    default: null,
    says: "Where the ingress listens for them. Without it: at each name's own address. `0.0.0.0`: at that address for the only name. `a.example.org=10.0.0.5,b.example.org=10.0.0.6`: for those names at those addresses.",
  },
  BERTH_HTTP_LISTEN: {
    default: '127.0.0.1:7480',
    says: 'Where [HTTP ports](publishing.md) listen. Another address needs TLS or an https `BERTH_HTTP_URL`.',
  },
  BERTH_HTTP_DOMAIN: { default: 'localhost', says: 'Hostnames of HTTP ports are below it.' },
  BERTH_HTTP_TLS_CERT: {
    default: null,
    says: 'A PEM file with a wildcard certificate, read again when it changes. Needs `BERTH_HTTP_TLS_KEY`.',
  },
  BERTH_HTTP_TLS_KEY: { default: null, says: 'A PEM file with its key.' },
  BERTH_HTTP_URL: {
    default: null,
    says: 'The origin of a proxy in front, such as `https://apps.example.com`. Without it: the origin of `BERTH_HTTP_LISTEN`.',
  },
};

const ACCOUNTS: Texts = {
  BERTH_ADMIN_EMAIL: { default: 'admin@localhost', says: 'The first administrator.' },
  BERTH_ADMIN_PASSWORD: {
    default: null,
    says: 'Their password, which must not be among the most used ones. Without it one is made, printed once after `berth ready`, and kept in `secrets/first-login` of the data folder.',
  },
  BERTH_SECRET_KEY: {
    default: null,
    says: 'The key that opens the database: 32 bytes, as 64 hexadecimal digits or as base64. Without it one is made in the data folder. A key that does not match the database is refused; [it can be replaced](operating/rotation.md#the-secret-key).',
  },
  BERTH_SIGNUPS: { default: 'closed', says: '`open`: everybody may register.' },
  BERTH_OIDC_ISSUER: {
    default: null,
    says: 'An OpenID provider for logins ([OpenID Connect](sign-in.md)). Needs client id and secret.',
  },
  BERTH_OIDC_CLIENT_ID: { default: null, says: "Berth's id at the provider." },
  BERTH_OIDC_CLIENT_SECRET: { default: null, says: "Berth's secret at the provider." },
  BERTH_OIDC_GROUPS: {
    default: null,
    says: 'The roles that groups of the provider give: `GROUP=ORGANISATION:ROLE`, separated by commas.',
  },
  BERTH_PASSWORD_LOGIN: { default: 'on', says: '`off`: the provider is the only way to log in.' },
  BERTH_SMTP_URL: {
    default: null,
    says: 'The server that takes mail. Without it mail becomes files in `mail/` of the data folder, every address counts as confirmed, and the link of an invitation goes to its sender.',
  },
};

const LIMITS: Texts = {
  BERTH_QUOTA_DEFAULTS: {
    default: pairs(QUOTA_DEFAULTS, QUOTAS),
    says: 'Quotas of each organisation without values of its own; the last four are of each account. A value may be `unlimited`. Those that you leave out keep their default.',
  },
  BERTH_RATE_LIMITS: {
    default: pairs({ ...DEFAULT_RATE_LIMITS }, ['principal', 'address', 'changes']),
    says: 'Requests a minute of a user or service account with all of its credentials (`principal`), and of an address to the routes that take a password (`address`); changes of a user or service account in an hour, at each control plane (`changes`). Name one or more of them, or `off`.',
  },
  BERTH_WEBHOOK_ALLOW_CIDRS: {
    default: null,
    says: 'Networks to which webhooks may go, also over http, beside public addresses.',
  },
};

const DATA: Texts = {
  DATABASE_URL: {
    default: null,
    says: 'A PostgreSQL of yours; it may name [several servers](operating/postgresql.md). Without it Berth runs its own.',
  },
  BERTH_S3_BUCKET: {
    default: null,
    says: 'A bucket for the objects. It must exist, its credentials must allow to read, write, list and delete, and only one installation may use it. Hosts that join have none: control planes sign their requests. Without it the objects are in a folder of the data folder.',
  },
  BERTH_S3_ENDPOINT: {
    default: null,
    says: "The bucket's server. Without it: Amazon's. Needs a bucket.",
  },
  BERTH_DISK_ENCRYPTION: { default: 'on', says: '`off`: later flushes are not encrypted.' },
  BERTH_REMOVAL_DELAY_HOURS: {
    default: null,
    says: 'How long objects that nothing needs stay in the store, 1 to 8760: so far back the database can be set without missing a segment of a disk that still exists ([backup](backup.md#back-to-a-point-in-time)). Without it: 24 with `DATABASE_URL`, 1 with the embedded database. `berth disk free` removes them at once.',
  },
};

const VMS: Texts = {
  BERTH_ACCEL: {
    default: 'auto',
    says: '`kvm` or `tcg` (emulation). `auto`: KVM where a test guest boots on it.',
  },
  BERTH_GUEST_NETWORK: {
    default: 'auto',
    says: "`auto`: TAP devices where the host has them, else QEMU's user network, and `isolation_problem` says why. `user`: always that.",
  },
  BERTH_FAST_START: { default: 'on', says: '`off`: every start boots, and no templates are made.' },
};

const FLEET: Texts = {
  BERTH_HOSTS_LISTEN: {
    default: null,
    says: '`HOST:PORT` where hosts on other machines join, and other control planes connect, over TLS. Needs a bucket. Without it: nowhere.',
  },
  BERTH_HOSTS_URL: {
    default: null,
    says: "`https://HOST:PORT` where hosts and other control planes reach this one, never a balancer's. Without it: the origin of `BERTH_HOSTS_LISTEN`. If neither names an address, this control plane is not listed.",
  },
  BERTH_HOST_LEASE_SECONDS: { default: '40', says: 'The lease of each host of a fleet, 3 to 3600.' },
  BERTH_CONTROL_PLANE: {
    default: null,
    says: 'For `berth host` and `berth ingress`: `https://HOST:PORT` of a control plane, or of a TCP balancer before them.',
  },
  BERTH_HOST_TOKEN_FILE: {
    default: null,
    says: 'For `berth host`: the file with the output of `berth host add`. Refused with a bucket.',
  },
  BERTH_INGRESS_TOKEN_FILE: {
    default: null,
    says: 'For `berth ingress`: the file with the output of `berth ingress add`.',
  },
};

const OBSERVE: Texts = {
  BERTH_LOG_LEVEL: {
    default: 'info',
    says: 'Logs are JSON lines on stderr. If that is a terminal: in `logs/berth.log` of the data folder (32 MiB, and the one before), and only errors on the terminal.',
  },
  BERTH_METRICS_LISTEN: {
    default: null,
    says: '`HOST:PORT` where Prometheus reads `/metrics`, without a credential. Without it: nowhere.',
  },
  OTEL_EXPORTER_OTLP_ENDPOINT: {
    default: null,
    says: 'The URL of a collector that takes OTLP over HTTP. Without it: no [traces](operating.md#traces), and nothing below is looked at.',
  },
  OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: { default: null, says: 'The same, for traces alone.' },
  OTEL_EXPORTER_OTLP_HEADERS: { default: null, says: 'Header fields, such as a credential.' },
  OTEL_EXPORTER_OTLP_PROTOCOL: { default: 'http/protobuf', says: 'There is no other.' },
  OTEL_EXPORTER_OTLP_TIMEOUT: { default: '10000', says: 'Milliseconds.' },
  OTEL_EXPORTER_OTLP_COMPRESSION: { default: 'none', says: 'Or `gzip`.' },
  OTEL_TRACES_SAMPLER: {
    default: 'parentbased_always_on',
    says: '`always_on`, `always_off` or `traceidratio`, each also with `parentbased_`.',
  },
  OTEL_TRACES_SAMPLER_ARG: { default: '1', says: 'The ratio.' },
  OTEL_RESOURCE_ATTRIBUTES: { default: null, says: 'What else a span says of its process.' },
};

const GROUPS: readonly (readonly [string, Texts])[] = [
  ['Addresses', ADDRESSES],
  ['Addresses of instances', PORTS],
  ['Accounts', ACCOUNTS],
  ['Limits', LIMITS],
  ['Database and objects', DATA],
  ['VMs', VMS],
  ['Several machines', FLEET],
  ['Logs, metrics, traces', OBSERVE],
];

export const SETTING_TEXTS: Texts = Object.fromEntries(GROUPS.flatMap(([, texts]) => Object.entries(texts)));

const HEAD = `# Settings

Generated by \`npm run documents\` from \`src/config/settings-reference.ts\`.

Settings are environment variables. An empty one counts as unset. Of a bad or unknown one the start prints a line and ends with exit code 2, before it makes anything.`;

/** Variables that Berth's libraries read by themselves. */
const OF_OTHERS = `## Variables of libraries

| variable | |
|---|---|
| \`AWS_ACCESS_KEY_ID\`, \`AWS_SECRET_ACCESS_KEY\`, \`AWS_SESSION_TOKEN\` | Credentials of the bucket. Without them: profiles, web identity and instance roles, as Amazon's client finds them. |
| \`AWS_REGION\`, \`AWS_DEFAULT_REGION\` | The bucket's region. Without them: \`us-east-1\`. |
| \`OTEL_SERVICE_NAME\` | Without it: \`berth-control-plane\` and \`berth-agent\`. |
| \`OTEL_SDK_DISABLED\`, \`OTEL_TRACES_EXPORTER\` | \`true\` and \`none\` switch traces off. |`;

export function settingsText(): string {
  const parts = GROUPS.map(([title, texts]) => `## ${title}\n\n${tableOf(texts)}`);
  return `${[HEAD, ...parts, OF_OTHERS].join('\n\n')}\n`;
}

function tableOf(texts: Texts): string {
  const rows = Object.entries(texts).map(([name, text]) => [
    `\`${name}\``,
    text.default === null ? '' : `\`${text.default}\``,
    text.says,
  ]);
  return markdownTable(['variable', 'default', ''], rows);
}
