/** The client of Amazon's library, for any S3 endpoint. */
import { S3Client, type S3ClientConfig } from '@aws-sdk/client-s3';
import type { S3Patience } from './s3-requests.ts';

export interface S3Settings {
  readonly bucket: string;
  /** Null: Amazon's endpoint of the region. */
  readonly endpoint: string | null;
  readonly region: string;
  /** Null, with the secret null too: the SDK's default chain finds the credentials (profiles, roles, …). */
  readonly access_key_id: string | null;
  readonly secret_access_key: string | null;
  readonly session_token: string | null;
}

export function clientFor(settings: S3Settings, bounds: S3Patience): S3Client {
  const { endpoint, region, access_key_id, secret_access_key, session_token } = settings;
  return new S3Client({
    ...common(bounds),
    region,
    ...(endpoint === null ? {} : { endpoint }),
    ...(access_key_id === null || secret_access_key === null
      ? {}
      : {
          credentials: {
            accessKeyId: access_key_id,
            secretAccessKey: secret_access_key,
            ...(session_token === null ? {} : { sessionToken: session_token }),
          },
        }),
  });
}

/** A client for requests that somebody else signs ({@link sendAs}). It has no credentials, and knows no store. */
export function clientWithoutCredentials(bounds: S3Patience): S3Client {
  return new S3Client({
    ...common(bounds),
    ...{ region: 'none', endpoint: 'http://none.invalid' },
    credentials: { accessKeyId: 'none', secretAccessKey: 'none' },
    signer: { sign: async (request) => request },
  });
}

function common(bounds: S3Patience): S3ClientConfig {
  const connections = { keepAlive: true, maxSockets: bounds.requests_max, maxFreeSockets: 16 };
  return {
    // A bucket in the host name needs DNS names and certificates that few self-hosted stores have.
    forcePathStyle: true,
    // Bodies are signed and segments have hashes. Some stores do not support trailers.
    requestChecksumCalculation: 'WHEN_REQUIRED',
    responseChecksumValidation: 'WHEN_REQUIRED',
    // It would open a new connection for every larger body.
    expectContinueHeader: false,
    maxAttempts: 1,
    // The SDK would warn about each failed PUT that it does not retry. We retry.
    logger: { debug: silent, info: silent, warn: silent, error: silent },
    requestHandler: {
      connectionTimeout: bounds.connect_timeout_ms,
      socketTimeout: bounds.stall_timeout_ms,
      httpAgent: connections,
      httpsAgent: connections,
    },
  };
}

function silent(): void {}
