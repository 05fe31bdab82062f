/**
 * Packs Python with requests, Node and git for guests, whose image has none of them. Python and git come from this
 * machine's Debian packages, Node is the one that runs the tests, and the libraries that they need are added. The
 * programs are unchanged, and know nothing of Berth.
 */
import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';

const PACKAGES = '/usr/lib/python3/dist-packages';
const PROGRAMS = [
  ...['/usr/bin/python3.11', '/usr/bin/git'],
  ...['/usr/lib/git-core/git-remote-https', '/usr/lib/git-core/git-http-fetch'],
];
const FILES = [
  ...PROGRAMS,
  '/usr/lib/python3.11',
  ...['requests', 'urllib3', 'idna', 'certifi', 'chardet', 'six.py'].map((name) => `${PACKAGES}/${name}`),
];
/** Parts of Python that load libraries. */
const MODULES = ['_ssl', '_hashlib', '_ctypes'].map(
  (name) => `/usr/lib/python3.11/lib-dynload/${name}.cpython-311-x86_64-linux-gnu.so`,
);
/** What a guest has already stays. */
export const UNPACK =
  'tar -C / -x --skip-old-files && ln -sf python3.11 /usr/bin/python3 && mkdir -p /usr/local/bin && mv /node /usr/local/bin/node';

/** null: this machine does not have them. */
export function packClients(): Buffer | null {
  if (!FILES.every((path) => existsSync(path))) return null;
  const linked = [...PROGRAMS, ...MODULES, process.execPath].filter((path) => existsSync(path));
  const said = execFileSync('ldd', linked, { encoding: 'utf8' });
  const libraries = new Set([...said.matchAll(/=> (\/\S+) \(0x/g)].map(([, path = '']) => path));
  const about = [
    '--exclude=test',
    '--exclude=config-*',
    `--transform=s,^${process.execPath.slice(1)}$,node,`,
  ];
  const paths = [...FILES, ...libraries, process.execPath].map((path) => path.slice(1));
  return execFileSync('tar', ['-C', '/', '-c', '--dereference', ...about, ...paths], { maxBuffer: 2 ** 30 });
}
