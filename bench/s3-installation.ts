/** An installation whose objects are in a bucket of a real S3 server (Ceph's gateway), behind a proxy that counts and delays requests. */
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { bucketSettings, S3Server } from '../test/support/s3-server.ts';
import { type SeenRequest, ToxicProxy } from '../test/support/toxic-proxy.ts';
import type { BenchContext } from './figure.ts';
import { Installation } from './installation.ts';

const PROJECT_DIR = join(import.meta.dirname, '..');

export interface S3Installation extends AsyncDisposable {
  readonly installation: Installation;
  readonly proxy: ToxicProxy;
}

/** The requests to the store for disks. */
export interface Traffic {
  readonly requests: number;
  readonly sent_mib: number;
  readonly fetched_mib: number;
}

export async function startOnS3({
  installation,
  scratch_dir,
  signal,
}: BenchContext): Promise<S3Installation> {
  await using cleanup = new AsyncDisposableStack();
  const server = await S3Server.start();
  cleanup.defer(() => server.close());
  const proxy = await ToxicProxy.open(server.port);
  cleanup.defer(() => proxy.cut());
  const bucket = await server.bucket(proxy.endpoint);
  const dir = join(scratch_dir, 's3');
  await mkdir(dir, { mode: 0o711 });
  const on_s3 = await Installation.start({
    ...{ project_dir: PROJECT_DIR, data_dir: join(dir, 'data'), log_path: join(dir, 'log') },
    ...{ accel: installation.accel, signal },
    settings: {
      ...bucketSettings(bucket),
      // Other ports than the other installation's.
      BERTH_SSH_PORTS: '24000-24999',
    },
  });
  cleanup.defer(() => on_s3.end());
  const all = cleanup.move();
  return { installation: on_s3, proxy, [Symbol.asyncDispose]: () => all.disposeAsync() };
}

/** Counts requests for objects of disks, without images and the store's health checks. */
export function trafficOf(seen: readonly SeenRequest[]): Traffic {
  const disks = seen.filter(({ path }) => path.includes('/disks/'));
  const sum = (bytes: (request: SeenRequest) => number) =>
    disks.reduce((total, request) => total + bytes(request), 0) / 2 ** 20;
  return {
    requests: disks.length,
    sent_mib: sum(({ method, headers }) => (method === 'PUT' ? Number(headers['content-length'] ?? 0) : 0)),
    fetched_mib: sum(({ method, headers }) => {
      const [, from, to] = /^bytes=(\d+)-(\d+)$/.exec(headers.range ?? '') ?? [];
      return method === 'GET' && from !== undefined && to !== undefined ? Number(to) - Number(from) + 1 : 0;
    }),
  };
}
