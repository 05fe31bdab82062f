/**
 * Defines the format of a backup, and reads its manifest. A backup is a folder with these files. `manifest.json` is
 * written last: a folder without it is no complete backup.
 *
 *     manifest.json            what the backup has: `BackupManifest`
 *     database.jsonl.zst       the rows of all tables, of one snapshot (table-data.ts)
 *     objects.jsonl.zst        the list of the disks' objects, a line each: {key, size_bytes, sha256 or null}
 *     objects/<key>            the objects, unless they stay in their bucket
 *     images/<image>/<name>/   the base images that the disks are based on
 *     secret-key               the secret key, unless left out: no disk is readable without it
 */
import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { errnoOf } from '../../shared/errors.ts';
import type { AppliedMigration } from '../db/migrate.ts';

export const BACKUP_VERSION = 1;

export interface BackupManifest {
  readonly kind: 'berth backup';
  readonly version: number;
  /** The time of the database's snapshot. */
  readonly made_at: string;
  readonly migrations: readonly AppliedMigration[];
  readonly database: { readonly rows: number; readonly sha256: string };
  readonly objects: {
    /** False: they stay in their bucket. */
    readonly included: boolean;
    readonly count: number;
    readonly bytes: number;
    /** Of the list of objects. */
    readonly sha256: string;
    /** The mark of their store; null or absent: it had none. */
    readonly store?: string | null;
    /** Keys of objects that could not be saved: missing, or of a wrong size. */
    readonly damaged: readonly string[];
  };
  readonly images: readonly BackupImage[];
  readonly secret_key: {
    readonly included: boolean;
    /** Proves a key without revealing it. */
    readonly check: string;
  };
}

export interface BackupImage {
  readonly id: string;
  /** The name of its folder. */
  readonly name: string;
  readonly version: string;
  /** It was current for new disks. */
  readonly newest?: boolean;
}

export interface BackupObject {
  readonly key: string;
  readonly size_bytes: number;
  /** Null: it is not in the backup. */
  readonly sha256: string | null;
}

export const backupPaths = (folder: string) => ({
  manifest: join(folder, 'manifest.json'),
  database: join(folder, 'database.jsonl.zst'),
  object_list: join(folder, 'objects.jsonl.zst'),
  objects: join(folder, 'objects'),
  images: join(folder, 'images'),
  secret_key: join(folder, 'secret-key'),
});

/** Why a backup or a restore is not possible, for the operator. */
export class BackupError extends Error {
  override name = 'BackupError';
  readonly reason: 'usage' | 'state' | 'damaged';

  constructor(message: string, reason: BackupError['reason'], options?: ErrorOptions) {
    super(message, options);
    this.reason = reason;
  }
}

export function keyCheck(secret_key: Uint8Array): string {
  return createHash('sha256').update('berth backup key check').update(secret_key).digest('hex').slice(0, 32);
}

/** @throws BackupError */
export async function readManifest(folder: string): Promise<BackupManifest> {
  const path = backupPaths(folder).manifest;
  let text: string;
  try {
    text = await readFile(path, 'utf8');
  } catch (error) {
    if (!['ENOENT', 'ENOTDIR'].includes(errnoOf(error) ?? '')) throw error;
    throw new BackupError(`${folder} is not a complete backup: it has no manifest.json`, 'usage');
  }
  return parseManifest(text, path);
}

/** @throws BackupError */
export function parseManifest(text: string, path: string): BackupManifest {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new BackupError(`${path} is damaged`, 'damaged', { cause: error });
  }
  const manifest = value as BackupManifest;
  if (typeof value !== 'object' || value === null || manifest.kind !== 'berth backup') {
    throw new BackupError(`${path} is not the manifest of a backup`, 'usage');
  }
  if (manifest.version !== BACKUP_VERSION) {
    throw new BackupError(
      `${path} has version ${manifest.version}, and this program reads version ${BACKUP_VERSION}: use the berth that made the backup, or a newer one`,
      'usage',
    );
  }
  return manifest;
}
