/** The frames of a host's stream of output, from an offset on. A gap is an error: no reader takes what follows it for the whole. */
import {
  FRAME,
  MalformedStreamError,
  readOffset,
  type StreamFrame,
  StreamFrames,
} from '../../protocol/exec-stream.ts';
import { AppError } from '../../shared/errors.ts';

/** 409 CONFLICT, whose detail programs read. */
export class OutputLostError extends AppError {
  readonly lost_bytes: number;
  /** Of the first byte that is still kept. */
  readonly offset: number;

  constructor(reached: number, offset: number) {
    const lost_bytes = offset - reached;
    super('CONFLICT', {
      message: `${lost_bytes} bytes of the output, from offset ${reached} on, are no longer kept. Read on from offset ${offset}.`,
      details: [{ field: 'offset', issue: `lost ${lost_bytes}, first kept ${offset}` }],
    });
    this.lost_bytes = lost_bytes;
    this.offset = offset;
  }
}

export class OutputFrames {
  readonly #frames = new StreamFrames();
  #reached: number;

  constructor(offset: number) {
    this.#reached = offset;
  }

  /** The frames that `chunk` completes, up to the gap or fault. @throws OutputLostError, MalformedStreamError */
  *push(chunk: Buffer): Generator<StreamFrame, void, undefined> {
    for (const frame of this.#frames.push(chunk)) {
      const { type, payload } = frame;
      if (type === FRAME.attached) this.#require(readOffset(payload).offset);
      if (type === FRAME.stdout || type === FRAME.stderr) {
        const { offset, rest } = readOffset(payload);
        this.#require(offset);
        // A host can send anything.
        if (offset < this.#reached) throw new MalformedStreamError('output is repeated');
        this.#reached += rest.length;
      }
      yield frame;
    }
  }

  #require(offset: number): void {
    if (offset > this.#reached) throw new OutputLostError(this.#reached, offset);
  }
}
