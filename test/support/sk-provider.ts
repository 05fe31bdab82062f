/**
 * A FIDO token in software: `sk-dummy.so` of OpenSSH's regression tests, which creates and uses real sk- keys. It is extracted
 * from Debian's package openssh-tests without installing it, because the package depends on a server and more.
 */
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';

const CACHE = join(import.meta.dirname, '..', '..', '.cache');
const FOLDER = join(CACHE, 'openssh-tests');
const PROVIDER = join(FOLDER, 'usr/lib/openssh/regress/misc/sk-dummy/sk-dummy.so');

/** The library's path, for SecurityKeyProvider. */
export function skProvider(): string {
  if (!existsSync(PROVIDER)) {
    mkdirSync(CACHE, { recursive: true });
    const work = mkdtempSync(join(CACHE, 'openssh-tests-'));
    try {
      const options = { cwd: work, stdio: 'pipe' } as const;
      const apt = (...words: string[]) =>
        execFileSync('apt-get', ['-q', '-o', 'APT::Sandbox::User=root', ...words], options);
      download(apt);
      execFileSync('sh', ['-c', 'dpkg-deb -x openssh-tests_*.deb x'], options);
      rmSync(FOLDER, { recursive: true, force: true });
      renameSync(join(work, 'x'), FOLDER);
    } finally {
      rmSync(work, { recursive: true, force: true });
    }
  }
  return PROVIDER;
}

/** The package lists may be missing or old, and a mirror may answer with nonsense for a minute while it is updated. */
function download(apt: (...words: string[]) => unknown): void {
  for (let tries = 1; ; tries++) {
    try {
      if (tries > 1) apt('update');
      apt('download', 'openssh-tests');
      return;
    } catch (error) {
      if (tries === 8) throw error;
      if (tries > 1) execFileSync('sleep', ['15']);
    }
  }
}
