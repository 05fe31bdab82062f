/**
 * Packs frames into segments and uploads them, for one flush.
 *
 * Invariants: frames go into segments in the order of `append`, so that a later entry for a block overrides an
 * earlier one; no block is twice in one segment; a segment is cut only when the next frame does not fit (or on
 * `cut`), so at `finish` the open one is the last and says so. At most `upload_concurrency` PUTs at once. The first
 * failing PUT ends it all.
 */
import { assert } from '../lib/assert.ts';
import { release } from '../lib/release.ts';
import { ObjectExistsError, type ObjectStore } from '../object-store/object-store.ts';
import type { AttemptKey } from './key-ring.ts';
import { encodeTail, type NewEntry, SEGMENT_MAX_ENTRIES, type SegmentIdentity } from './segment-format.ts';
import { segmentKey } from './segment-key.ts';

/** A segment that is durable in the store. */
export interface WrittenSegment {
  readonly key: string;
  readonly size_bytes: number;
  readonly entries: number;
  /** Which data key it is encrypted with; null: it is not encrypted. */
  readonly key_id: string | null;
}

export interface SegmentWriterOptions {
  readonly store: ObjectStore;
  readonly key_prefix: string;
  readonly identity: Omit<SegmentIdentity, 'part' | 'last' | 'encryption'>;
  /** The attempt's, with which the frames that come are encrypted; null: they are not. */
  readonly key: AttemptKey | null;
  /** Most bytes of frames in one segment. */
  readonly segment_bytes: number;
  readonly upload_concurrency: number;
  readonly signal: AbortSignal;
  /** Takes the buffer of frames that no segment needs any more; released unless given. */
  readonly onDropped?: (frames: Uint8Array) => void;
  /** Called when memory held by a segment is free again, with the number of bytes charged by `append`. */
  readonly onFreed: (charged_bytes: number) => void;
  readonly onFailure: (cause: unknown) => void;
}

interface OpenSegment {
  readonly entries: NewEntry[];
  readonly blocks: Set<number>;
  readonly body: Uint8Array[];
  frame_bytes: number;
  charged_bytes: number;
}

/** Of frames in one buffer how many segments have some: its memory goes with the last. */
class FrameBuffers {
  readonly #segments = new Map<ArrayBufferLike, number>();
  readonly #onDropped: (frames: Uint8Array) => void;

  constructor(onDropped: (frames: Uint8Array) => void) {
    this.#onDropped = onDropped;
  }

  /** Frames of one segment. A frame that follows the one before in memory lengthens its part. */
  add(body: Uint8Array[], stored: Uint8Array): void {
    const { buffer, byteOffset } = stored;
    const last = body.at(-1);
    if (last && last.buffer === buffer && last.byteOffset + last.length === byteOffset) {
      body[body.length - 1] = new Uint8Array(buffer, last.byteOffset, last.length + stored.length);
      return;
    }
    if (last?.buffer !== buffer) this.#segments.set(buffer, (this.#segments.get(buffer) ?? 0) + 1);
    body.push(stored);
  }

  /** A segment's frames are in the store, and wanted no more. */
  drop(body: readonly Uint8Array[]): void {
    for (const [i, part] of body.entries()) {
      if (i > 0 && body[i - 1]?.buffer === part.buffer) continue;
      const left = (this.#segments.get(part.buffer) ?? 0) - 1;
      if (left > 0) this.#segments.set(part.buffer, left);
      else {
        this.#segments.delete(part.buffer);
        this.#onDropped(part);
      }
    }
  }
}

interface Upload {
  readonly key: string;
  readonly body: readonly Uint8Array[];
  readonly charged_bytes: number;
  readonly written: WrittenSegment;
}

export class SegmentWriter {
  readonly #options: SegmentWriterOptions;
  readonly #queue: Upload[] = [];
  readonly #segments: WrittenSegment[] = [];
  readonly #attemptedKeys: string[] = [];
  readonly #buffers: FrameBuffers;
  #open = emptySegment();
  #uploads = 0;
  #failed = false;
  #idle: { readonly promise: Promise<void>; readonly resolve: () => void } | undefined;

  constructor(options: SegmentWriterOptions) {
    assert(options.upload_concurrency >= 1, 'at least one upload at a time');
    this.#options = options;
    this.#buffers = new FrameBuffers(options.onDropped ?? release);
  }

  get uploading(): boolean {
    return this.#uploads > 0;
  }

  /**
   * Appends one block. `stored` is kept, not copied; its whole buffer is released once the segments with frames of it are
   * uploaded, so all of them are appended in one go.
   */
  append(entry: NewEntry, stored: Uint8Array, charged_bytes: number): void {
    const { segment_bytes } = this.#options;
    const full =
      this.#open.frame_bytes + entry.stored_bytes > segment_bytes ||
      this.#open.entries.length >= SEGMENT_MAX_ENTRIES ||
      this.#open.blocks.has(entry.block);
    if (full && this.#open.entries.length > 0) this.cut();
    this.#open.entries.push(entry);
    this.#open.blocks.add(entry.block);
    this.#open.frame_bytes += entry.stored_bytes;
    this.#open.charged_bytes += charged_bytes;
    if (stored.length > 0) this.#buffers.add(this.#open.body, stored);
  }

  /** Sends what there is as a segment that is not the last. */
  cut(): void {
    if (this.#open.entries.length > 0) this.#close(false);
  }

  /** Uploads the rest; resolves when everything is durable. Nothing appended: no segment. */
  async finish(): Promise<readonly WrittenSegment[]> {
    if (this.#open.entries.length > 0 || this.#segments.length > 0) this.#close(true);
    await this.settled();
    return this.#segments;
  }

  /** Resolves when no upload is under way, whatever became of them. */
  settled(): Promise<void> {
    if (this.#uploads === 0) return Promise.resolve();
    this.#idle ??= Promise.withResolvers<void>();
    return this.#idle.promise;
  }

  /** Deletes every object that was or may have been written; best effort. Call when settled. */
  async discard(): Promise<void> {
    await Promise.allSettled(this.#attemptedKeys.map((key) => this.#options.store.delete(key)));
  }

  #close(last: boolean): void {
    const { entries, body, frame_bytes, charged_bytes } = this.#open;
    this.#open = emptySegment();
    const attempt_key = this.#options.key;
    const encryption = attempt_key?.encryption ?? null;
    const identity = { ...this.#options.identity, part: this.#segments.length, last, encryption };
    const key = segmentKey(this.#options.key_prefix, identity);
    const tail = encodeTail(identity, entries, attempt_key);
    const written = {
      key,
      size_bytes: frame_bytes + tail.length,
      entries: entries.length,
      key_id: encryption?.key_id ?? null,
    };
    this.#segments.push(written);
    this.#queue.push({ key, body: [...body, tail], charged_bytes, written });
    this.#pump();
  }

  #pump(): void {
    while (!this.#failed && this.#uploads < this.#options.upload_concurrency) {
      const upload = this.#queue.shift();
      if (!upload) return;
      this.#uploads += 1;
      void this.#put(upload).then(
        () => this.#ended(upload),
        (error: unknown) => this.#ended(upload, { cause: error }),
      );
    }
  }

  #ended(upload: Upload, failure?: { readonly cause: unknown }): void {
    this.#uploads -= 1;
    if (failure && !this.#failed) {
      this.#failed = true;
      this.#queue.length = 0;
      this.#options.onFailure(failure.cause);
    }
    // In this order: what is kept for the next batches depends on how much there is.
    this.#options.onFreed(upload.charged_bytes);
    if (!failure) this.#buffers.drop(upload.body);
    this.#pump();
    if (this.#uploads > 0) return;
    this.#idle?.resolve();
    this.#idle = undefined;
  }

  async #put({ key, body }: Upload): Promise<void> {
    const { store, signal } = this.#options;
    signal.throwIfAborted();
    this.#attemptedKeys.push(key);
    try {
      await store.put(key, body, signal, 'cold');
    } catch (error) {
      // An earlier try inside the store may have been written though its answer was lost.
      if (!(error instanceof ObjectExistsError)) throw error;
      const there = await store.get(key, undefined, signal);
      if (!there.equals(Buffer.concat(body))) throw error;
    }
  }
}

function emptySegment(): OpenSegment {
  return { entries: [], blocks: new Set(), body: [], frame_bytes: 0, charged_bytes: 0 };
}
