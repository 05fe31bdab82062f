/** Opens the configured object store: a bucket, or a folder in the data folder. */
import type { Log } from '../shared/log.ts';
import { FolderStore } from './folder-store.ts';
import type { ObjectStore } from './object-store.ts';
import { type S3Settings, S3Store } from './s3-store.ts';

export interface OpenStoreOptions {
  /** Null: use the folder. */
  readonly s3: S3Settings | null;
  readonly folder: string;
  readonly log: Log;
}

/** Does not fail for an unavailable bucket; `check` reports that. */
export async function openStore({ s3, folder, log }: OpenStoreOptions): Promise<ObjectStore> {
  return s3 === null ? FolderStore.open(folder, { log }) : new S3Store(s3, { log });
}
