import { existsSync } from 'node:fs';

const FOLDERS = ['/usr/local/sbin', '/usr/local/bin', '/usr/sbin', '/usr/bin'];

/** Options of a test that needs a program of a Debian package. */
export function skipWithout(program: string, debian_package: string): { readonly skip?: string } {
  if (FOLDERS.some((folder) => existsSync(`${folder}/${program}`))) return {};
  return { skip: `needs ${program} (apt-get install ${debian_package})` };
}
