/**
 * Signs requests for single objects in one process, so that another process without credentials can send them. The
 * signature covers method and key. Of a PUT it also covers the length, the hash of the bytes and `If-None-Match: *`:
 * the request can write exactly these bytes, and only where no object is.
 *
 * A PUT without bytes is never signed: Ceph accepts additional headers that are not signed, and one of them turns a PUT
 * into a copy of any other object. Ceph refuses that copy when there are signed bytes.
 */
import { createHash } from 'node:crypto';
import {
  type GetObjectCommand,
  HeadBucketCommand,
  type HeadObjectCommand,
  type PutObjectCommand,
  type S3Client,
} from '@aws-sdk/client-s3';
import { SignatureV4 } from '@smithy/signature-v4';
import { assert } from '../shared/assert.ts';

export type ObjectRequest =
  | { readonly method: 'GET' | 'HEAD'; readonly key: string }
  | { readonly method: 'PUT'; readonly key: string; readonly size_bytes: number; readonly sha256: string };

/** Valid for {@link SIGNED_MS} by the store's clock. */
export interface SignedRequest {
  readonly url: string;
  readonly headers: readonly { readonly name: string; readonly value: string }[];
}

/** Signatures in headers expire by the protocol: S3 refuses a date that is more than 15 minutes old. */
export const SIGNED_MS = 15 * 60_000;

/** Of our clock against the one that nobody sets. S3 accepts a date that is wrong by 15 minutes. */
const JUMP_MS = 60_000;

const OF_NOTHING = createHash('sha256').digest('hex');

type Command = PutObjectCommand | GetObjectCommand | HeadObjectCommand;
/** That of all commands: ours do not look at input and output. */
type Stack = GetObjectCommand['middlewareStack'];
/** What a middleware of the library sees of a request. */
interface Sent {
  protocol: string;
  hostname: string;
  port?: number;
  path: string;
  query: Record<string, string | string[] | null>;
  headers: Record<string, string>;
}

/**
 * Signs with the client's credentials, and sends nothing. It calls the library's signer alone: before a command is signed it passes
 * twenty steps, which would cost a flush more than all else here.
 */
export class RequestSigner {
  readonly #client: S3Client;
  readonly #bucket: string;
  readonly #signer: SignatureV4;
  /** Where the library finds the bucket. */
  #address: Promise<Sent> | undefined;
  /** Our clock, against the one that nobody sets, when the library last learned the store's time. */
  #learned: { readonly at_ms: number; readonly done: Promise<unknown> };

  constructor(client: S3Client, bucket: string) {
    const { credentials, region, sha256 } = client.config;
    this.#client = client;
    this.#bucket = bucket;
    this.#signer = new SignatureV4({ credentials, region, sha256, service: 's3', uriEscapePath: false });
    this.#learned = { at_ms: clockMs(), done: Promise.resolve() };
  }

  async sign(request: ObjectRequest): Promise<SignedRequest> {
    await this.#learnTime();
    this.#address ??= bucketAddress(this.#client, this.#bucket);
    const { protocol, hostname, port, path: folder } = await this.#address;
    const [host, path] = [port === undefined ? hostname : `${hostname}:${port}`, `${folder}/${request.key}`];
    const to_sign = {
      ...{ protocol, hostname, path, method: request.method, query: {} },
      ...(port === undefined ? {} : { port }),
      headers: { host, ...headersFor(request) },
    };
    const signingDate = new Date(Date.now() + this.#client.config.systemClockOffset);
    const { headers } = await this.#signer.sign(to_sign, { signingDate });
    return {
      url: `${protocol}//${host}${path}`,
      headers: Object.entries(headers).map(([name, value]) => ({ name: name.toLowerCase(), value })),
    };
  }

  /**
   * The library corrects dates by what the store's answers say. It learns nothing while others send what we sign, so after a jump
   * of our clock we ask for an answer. A refusal will do.
   */
  async #learnTime(): Promise<void> {
    const at_ms = clockMs();
    if (Math.abs(at_ms - this.#learned.at_ms) > JUMP_MS) {
      const asked = this.#client.send(new HeadBucketCommand({ Bucket: this.#bucket }));
      this.#learned = { at_ms, done: asked.catch(() => undefined) };
    }
    await this.#learned.done;
  }
}

const clockMs = () => Date.now() - performance.now();

function headersFor(request: ObjectRequest): Record<string, string> {
  if (request.method !== 'PUT') return { 'x-amz-content-sha256': OF_NOTHING };
  const { size_bytes, sha256 } = request;
  assert(size_bytes > 0 && sha256 !== OF_NOTHING, 'a signed write has bytes');
  return {
    'content-length': String(size_bytes),
    'content-type': 'application/octet-stream',
    'if-none-match': '*',
    'x-amz-content-sha256': sha256,
  };
}

/** Where the library finds the bucket: the request that it would send, for the bucket itself. */
async function bucketAddress(client: S3Client, bucket: string): Promise<Sent> {
  const command = new HeadBucketCommand({ Bucket: bucket });
  let found: Sent | undefined;
  command.middlewareStack.add(
    () => async (args) => {
      found = args.request as Sent;
      return { response: undefined, output: { $metadata: {} } };
    },
    // In place of what sends it.
    { step: 'finalizeRequest', priority: 'low', name: 'keepRequest' },
  );
  await client.send(command);
  assert(found, 'the library knows where the bucket is');
  return { ...found, path: found.path.replace(/\/$/, '') };
}

/** Passes the hash to the library, which cannot sign a stream's bytes by itself. */
export function signOver(command: PutObjectCommand, sha256: string): void {
  command.middlewareStack.add(
    (next) => (args) => {
      (args.request as Sent).headers['x-amz-content-sha256'] = sha256;
      return next(args);
    },
    { step: 'build', name: 'signOver' },
  );
}

/** Sends `command` as somebody else has signed it. Its body and its range stay. */
export function sendAs(command: Command, { url, headers }: SignedRequest): void {
  const { protocol, hostname, port, pathname } = new URL(url);
  (command.middlewareStack as Stack).add(
    (next) => (args) => {
      const request = args.request as Sent;
      const { range } = request.headers;
      Object.assign(request, { protocol, hostname, path: pathname, query: {} });
      if (port === '') delete request.port;
      else request.port = Number(port);
      request.headers = Object.fromEntries(headers.map(({ name, value }) => [name, value]));
      if (range !== undefined) request.headers['range'] = range;
      return next(args);
    },
    { step: 'finalizeRequest', priority: 'low', name: 'sendAs' },
  );
}
