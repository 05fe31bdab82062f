/**
 * Collects the frames of one flush in segments, and uploads these.
 *
 * Invariants:
 * - A segment has its frames in the order of `append`, and no block twice: a block that comes again goes into the next
 *   segment, and its later entry overrides the earlier one.
 * - A segment is closed by `cut`, by `finish`, or when the next frame does not fit. The one that `finish` closes is
 *   marked as the last.
 * - At most `upload_concurrency` PUTs run at once. The first failed PUT fails the flush.
 */
import { ObjectExistsError, type ObjectStore } from '../object-store/object-store.ts';
import { assert } from '../shared/assert.ts';
import { release } from '../shared/release.ts';
import type { AttemptKey } from './frame-cipher.ts';
import {
  encodeTail,
  type NewEntry,
  SEGMENT_MAX_ENTRIES,
  type SegmentIdentity,
  segmentKey,
} from './segment-format.ts';

/** A durable segment. */
export interface WrittenSegment {
  readonly key: string;
  readonly size_bytes: number;
  readonly entries: number;
  /** The data key it is encrypted with. Null: not encrypted. */
  readonly key_id: string | null;
}

export interface SegmentWriterOptions {
  readonly store: ObjectStore;
  readonly key_prefix: string;
  readonly identity: Omit<SegmentIdentity, 'part' | 'last' | 'encryption'>;
  /** The attempt's key, which has encrypted the frames. Null: not encrypted. */
  readonly key: AttemptKey | null;
  /** Maximum bytes of frames in one segment. */
  readonly segment_bytes: number;
  readonly upload_concurrency: number;
  readonly signal: AbortSignal;
  /** Gets each buffer that no segment needs any longer. By default it is released. */
  readonly onDropped?: (frames: Uint8Array) => void;
  /** Called when a segment's memory is free again, with the bytes charged by `append`. */
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

/** Counts, for each buffer, the segments with frames in it. The buffer is dropped with the last one. */
class FrameBuffers {
  readonly #segments = new Map<ArrayBufferLike, number>();
  readonly #onDropped: (frames: Uint8Array) => void;

  constructor(onDropped: (frames: Uint8Array) => void) {
    this.#onDropped = onDropped;
  }

  /** Adds a frame to a segment. A frame adjacent to the last one in memory extends its part. */
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

  /** Drops the frames of an uploaded segment. */
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
   * Appends one block. `stored` is kept, not copied. Its whole buffer is dropped once all segments with frames of it are
   * uploaded, so the caller appends all frames of a buffer without waiting in between.
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

  /** Closes and uploads the open segment, which is not the last one. */
  cut(): void {
    if (this.#open.entries.length > 0) this.#close(false);
  }

  /** Uploads the rest and resolves when everything is durable. Without any `append` there is no segment. */
  async finish(): Promise<readonly WrittenSegment[]> {
    if (this.#open.entries.length > 0 || this.#segments.length > 0) this.#close(true);
    await this.settled();
    return this.#segments;
  }

  /** Resolves when no upload is in flight, whether they succeeded or failed. */
  settled(): Promise<void> {
    if (this.#uploads === 0) return Promise.resolve();
    this.#idle ??= Promise.withResolvers<void>();
    return this.#idle.promise;
  }

  /** Deletes every object that was or may have been written, best effort. Call it when settled. */
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
    // Before the buffers are given back: how many are kept depends on the free memory.
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
      // The store's own retry may find the object of an attempt whose response was lost.
      if (!(error instanceof ObjectExistsError)) throw error;
      const there = await store.get(key, undefined, signal);
      if (!there.equals(Buffer.concat(body))) throw error;
    }
  }
}

function emptySegment(): OpenSegment {
  return { entries: [], blocks: new Set(), body: [], frame_bytes: 0, charged_bytes: 0 };
}
