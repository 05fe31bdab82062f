/**
 * Provides a FIDO token in software: `sk-dummy.so` of OpenSSH's regression tests, which creates and uses real sk- keys.
 * It is extracted from Debian's package openssh-tests without installing the package, which depends on a server and
 * more.
 */
import { execFile } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';

const run = promisify(execFile);

const CACHE = join(import.meta.dirname, '..', '..', '.cache');
const FOLDER = join(CACHE, 'openssh-tests');
const PROVIDER = join(FOLDER, 'usr/lib/openssh/regress/misc/sk-dummy/sk-dummy.so');

/**
 * The library's path, for SecurityKeyProvider. The download may take a minute. It does not block, because a blocked process
 * misses that a server has closed an idle connection, and its next request on it fails.
 */
export async function skProvider(): Promise<string> {
  if (!existsSync(PROVIDER)) {
    mkdirSync(CACHE, { recursive: true });
    const work = mkdtempSync(join(CACHE, 'openssh-tests-'));
    try {
      const apt = (...words: string[]) =>
        run('apt-get', ['-q', '-o', 'APT::Sandbox::User=root', ...words], { cwd: work });
      await download(apt);
      await run('sh', ['-c', 'dpkg-deb -x openssh-tests_*.deb x'], { cwd: work });
      rmSync(FOLDER, { recursive: true, force: true });
      renameSync(join(work, 'x'), FOLDER);
    } finally {
      rmSync(work, { recursive: true, force: true });
    }
  }
  return PROVIDER;
}

/** The package lists may be missing or old, and a mirror may answer with nonsense for some minutes while it is updated. */
async function download(apt: (...words: string[]) => Promise<unknown>): Promise<void> {
  for (let tries = 1; ; tries++) {
    try {
      if (tries > 1) await apt('update');
      await apt('download', 'openssh-tests');
      return;
    } catch (error) {
      if (tries === 20) throw error;
      if (tries > 1) await sleep(15_000);
    }
  }
}
