/** `berth cp`: files between this machine and a guest, over the API and without an SSH key. */
import { stat } from 'node:fs/promises';
import type { Call, Command } from '../command.ts';
import { UsageError } from '../command-error.ts';
import { Copier } from '../copy-files.ts';
import { EXIT } from '../exit-codes.ts';
import { fetchWithoutTimeout } from '../fetch-without-timeout.ts';
import { bytes } from '../table.ts';

interface Place {
  /** Null: this machine. */
  readonly instance: string | null;
  readonly path: Buffer;
}

/** As in scp, a colon before any slash makes it a guest's. @throws UsageError */
export function placeOf(word: string): Place {
  if (word.includes('\ufffd')) {
    throw new UsageError(
      'a name on the command line is not UTF-8; copy its folder with -r, which keeps every name',
    );
  }
  const colon = word.indexOf(':');
  const slash = word.indexOf('/');
  if (colon < 1 || (slash !== -1 && slash < colon)) return { instance: null, path: Buffer.from(word) };
  const [instance, path] = [word.slice(0, colon), word.slice(colon + 1)];
  if (!path.startsWith('/'))
    throw new UsageError(`a path in a guest begins with /, as in ${instance}:/${path}`);
  return { instance, path: Buffer.from(path) };
}

async function copy(call: Call): Promise<number> {
  const { args, options, session, terminal, signal } = call;
  const places = args.map(placeOf);
  const target = places.at(-1) as Place;
  const sources = places.slice(0, -1);
  const instances = new Set(sources.map(({ instance }) => instance));
  if (instances.size > 1)
    throw new UsageError('the sources must be in one place: this machine, or one guest');
  const [from = null] = instances;
  if (from !== null && target.instance !== null)
    throw new UsageError('berth cp does not copy from guest to guest; copy to this machine first');
  const instance = from ?? target.instance;
  if (instance === null) throw new UsageError('one side must be in a guest, as in web:/path');
  const berth = session.berth({ fetch: await fetchWithoutTimeout() });
  const { id, name } = await berth.instances.find(instance);
  const copier = new Copier({
    ...{ files: berth.files(id), name, terminal, signal },
    recursive: options.flag('recursive'),
  });
  const into = await isFolder(target, copier);
  if (!into && sources.length > 1)
    throw new UsageError('several files can only be copied into a folder that exists');
  for (const { path } of sources) {
    if (from === null) await copier.upload(path, target.path, into);
    else await copier.download(path, target.path, into);
  }
  const { copied, copied_bytes, failed } = copier;
  const files = copied === 1 ? '1 file' : `${copied} files`;
  if (copied > 0 || failed === 0) {
    terminal.done(`Copied ${files}, ${bytes(copied_bytes)}.`, { files: copied, bytes: copied_bytes, failed });
  }
  return failed === 0 ? EXIT.done : EXIT.failed;
}

async function isFolder({ instance, path }: Place, copier: Copier): Promise<boolean> {
  if (instance !== null) return copier.isRemoteFolder(path);
  return stat(path).then(
    (is) => is.isDirectory(),
    () => false,
  );
}

export const COPY: Command = {
  name: 'cp',
  args: ['SOURCE…', 'TARGET'],
  summary: 'copy files and folders into a guest or out of it, as scp does',
  details:
    'NAME:/path is in the guest of NAME; every other path is on this machine. The VM must run. It needs no SSH key. Permissions are kept, and the copy belongs to root or to you. A copy has its name only once it is whole.',
  example: 'berth cp -r ./site web:/srv',
  options: {
    recursive: { type: 'boolean', short: 'r', help: 'copy folders with all that they hold' },
  },
  run: copy,
};
