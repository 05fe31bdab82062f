/**
 * Requests for single objects that one process signs and another sends. The signature covers method, key and, of a PUT, the length,
 * the hash of the bytes and `If-None-Match: *`: the request can write exactly these bytes, and only where nothing is.
 *
 * None is signed without bytes: Ceph accepts further headers that are not signed, and one of them turns a PUT into a copy of any other
 * object. It refuses that copy when there are signed bytes.
 */
import { createHash } from 'node:crypto';
import { GetObjectCommand, HeadObjectCommand, PutObjectCommand, type S3Client } from '@aws-sdk/client-s3';
import { assert } from '../lib/assert.ts';

export type ObjectRequest =
  | { readonly method: 'GET' | 'HEAD'; readonly key: string }
  | { readonly method: 'PUT'; readonly key: string; readonly size_bytes: number; readonly sha256: string };

/** Valid for {@link SIGNED_MS} by the store's clock. A credential is not among the headers. */
export interface SignedRequest {
  readonly url: string;
  readonly headers: readonly { readonly name: string; readonly value: string }[];
}

/** Signatures in headers expire by the protocol: S3 refuses a date that is more than 15 minutes old. */
export const SIGNED_MS = 15 * 60_000;

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

/** Signs with the client's credentials, and sends nothing. */
export async function signRequest(
  client: S3Client,
  bucket: string,
  request: ObjectRequest,
): Promise<SignedRequest> {
  const command = commandFor(bucket, request);
  let signed: Sent | undefined;
  (command.middlewareStack as Stack).add(
    () => async (args) => {
      signed = args.request as Sent;
      return { response: undefined, output: { $metadata: {} } };
    },
    // After the signature, in place of what sends it.
    { step: 'finalizeRequest', priority: 'low', name: 'keepRequest' },
  );
  await client.send(command as GetObjectCommand);
  assert(signed, 'the library has signed the request');
  const { protocol, hostname, port, path, query, headers } = signed;
  const url = new URL(`${protocol}//${hostname}${port === undefined ? '' : `:${port}`}${path}`);
  for (const [name, value] of Object.entries(query)) url.searchParams.append(name, String(value ?? ''));
  return { url: url.href, headers: Object.entries(headers).map(([name, value]) => ({ name, value })) };
}

function commandFor(bucket: string, request: ObjectRequest): Command {
  const at = { Bucket: bucket, Key: request.key };
  switch (request.method) {
    case 'GET':
      return new GetObjectCommand(at);
    case 'HEAD':
      return new HeadObjectCommand(at);
    case 'PUT': {
      assert(request.size_bytes > 0 && request.sha256 !== OF_NOTHING, 'a signed write has bytes');
      const about = { ContentLength: request.size_bytes, ContentType: 'application/octet-stream' };
      const command = new PutObjectCommand({ ...at, ...about, IfNoneMatch: '*' });
      signOver(command, request.sha256);
      return command;
    }
  }
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
  const { protocol, hostname, port, pathname, searchParams } = new URL(url);
  (command.middlewareStack as Stack).add(
    (next) => (args) => {
      const request = args.request as Sent;
      const { range } = request.headers;
      Object.assign(request, { protocol, hostname, path: pathname, query: Object.fromEntries(searchParams) });
      if (port === '') delete request.port;
      else request.port = Number(port);
      request.headers = Object.fromEntries(headers.map(({ name, value }) => [name, value]));
      if (range !== undefined) request.headers['range'] = range;
      return next(args);
    },
    { step: 'finalizeRequest', priority: 'low', name: 'sendAs' },
  );
}
