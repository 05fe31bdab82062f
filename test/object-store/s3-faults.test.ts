/** What becomes of a request to a real S3 server when the way there is poisoned. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, before, beforeEach, describe, test } from 'node:test';
import { getCACertificates, setDefaultCACertificates } from 'node:tls';
import { promisify } from 'node:util';
import {
  ObjectExistsError,
  ObjectNotFoundError,
  ObjectStoreUnavailableError,
} from '../../src/object-store/object-store.ts';
import type { S3Patience } from '../../src/object-store/s3-requests.ts';
import { type S3Settings, S3Store } from '../../src/object-store/s3-store.ts';
import { logLines } from '../support/log-lines.ts';
import { S3Server } from '../support/s3-server.ts';
import { thorough } from '../support/thorough.ts';
import { type Certificate, type Toxic, ToxicProxy } from '../support/toxic-proxy.ts';

const THOROUGH = thorough(import.meta.filename);

/** Pauses are short, so that what has to fail does so soon. */
const PATIENCE: Partial<S3Patience> = { attempts: 4, backoff_base_ms: 5, backoff_max_ms: 20 };
/** For what says nothing; the server itself says something within that also where it has little of the machine. */
const STALL_MS = 1_500;

async function selfSigned(): Promise<Certificate> {
  const folder = await mkdtemp(join(tmpdir(), 'berth-tls-'));
  try {
    const [key, cert] = [join(folder, 'key.pem'), join(folder, 'cert.pem')];
    const self_signed = ['req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2'];
    const name = ['-subj', '/CN=berth-test', '-addext', 'subjectAltName=IP:127.0.0.1'];
    await promisify(execFile)('openssl', [...self_signed, ...name, '-keyout', key, '-out', cert]);
    return { key: await readFile(key, 'utf8'), cert: await readFile(cert, 'utf8') };
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

describe('S3 behind a faulty connection', { timeout: 300_000 }, () => {
  let server: S3Server;
  let proxy: ToxicProxy;
  let settings: S3Settings;
  /** Through the proxy, and past it. */
  let store: S3Store;
  let impatient: S3Store;
  let straight: S3Store;
  const body = randomBytes(300_000);

  before(async () => {
    server = await S3Server.start();
    proxy = await ToxicProxy.open(server.port);
  });
  after(async () => {
    await proxy?.cut();
    await server?.close();
  });
  beforeEach(async () => {
    settings = await server.bucket(proxy.endpoint);
    store = new S3Store(settings, { patience: PATIENCE });
    impatient = new S3Store(settings, { patience: { ...PATIENCE, stall_timeout_ms: STALL_MS } });
    straight = new S3Store({ ...settings, endpoint: server.endpoint });
    await straight.put('k', [body]);
  });
  afterEach(() => {
    proxy.heal();
    for (const each of [store, impatient, straight]) each.close();
  });

  /** Poisons the first requests, then lets the others through. */
  const first = (count: number, toxic: Toxic): void =>
    proxy.poison(({ number }) => (number <= count ? toxic : undefined));
  const always = (toxic: Toxic): void => proxy.poison(() => toxic);
  const unavailable = (why: RegExp) => (error: unknown) => {
    assert(error instanceof ObjectStoreUnavailableError, String(error));
    assert.match(error.message, why);
    assert(error.message.startsWith(`s3 bucket ${settings.bucket} at ${proxy.endpoint}: `), error.message);
    const told = JSON.stringify([error.message, error.reason, String(error.cause)]);
    for (const secret of [settings.access_key_id, settings.secret_access_key]) {
      assert(secret !== null && !told.includes(secret), told);
    }
    return true;
  };

  const keysOf = async (of: S3Store): Promise<string[]> => {
    const keys: string[] = [];
    for await (const { key } of of.list('')) keys.push(key);
    return keys;
  };

  const PASSING: readonly (readonly [string, Toxic, object?])[] = [
    ['500', { answer: { status: 500, code: 'InternalError' } }],
    ['503 SlowDown', { answer: { status: 503, code: 'SlowDown' } }],
    ['502 of a proxy', { answer: { status: 502, code: '<html>' } }, THOROUGH],
    ['409 of a write beside', { answer: { status: 409, code: 'ConditionalRequestConflict' } }, THOROUGH],
    ['403 of a token that ran out', { answer: { status: 403, code: 'ExpiredToken' } }],
  ];
  for (const [name, toxic, extent = {}] of PASSING) {
    test(`${name}: retried, and then succeeds`, extent, async () => {
      first(3, toxic);
      await store.put('new', [body]);
      assert.equal(proxy.seen.length, 4);
      first(3, toxic);
      assert((await store.get('new', { offset: 5, length: 200_000 })).equals(body.subarray(5, 200_005)));
      assert.equal(proxy.seen.length, 4);
      first(3, toxic);
      assert.equal(await store.size('new'), body.length);
      first(3, toxic);
      assert.deepEqual(await keysOf(store), ['k', 'new']);
      first(3, toxic);
      await store.delete('new');
      await assert.rejects(straight.size('new'), ObjectNotFoundError);
    });

    test(`${name} permanently: unavailable, after a bounded number of attempts`, extent, async () => {
      always(toxic);
      await assert.rejects(store.get('k'), unavailable(/, 4 times$/));
      assert.equal(proxy.seen.length, 4);
      await assert.rejects(store.put('new', [body]), unavailable(/, 4 times$/));
      assert.equal(proxy.seen.length, 8);
      proxy.heal();
      await assert.rejects(straight.size('new'), ObjectNotFoundError);
    });
  }

  test('no response: retried, and then succeeds', async () => {
    first(1, { hang: true });
    await impatient.put('new', [body]);
    assert.equal(proxy.seen.length, 2);
    first(1, { hang: true });
    assert((await impatient.get('new', { offset: 5, length: 200_000 })).equals(body.subarray(5, 200_005)));
    assert.equal(proxy.seen.length, 2);
    first(1, { hang: true });
    assert.equal(await impatient.size('new'), body.length);
    first(1, { hang: true });
    assert.deepEqual(await keysOf(impatient), ['k', 'new']);
    first(1, { hang: true });
    await impatient.delete('new');
    await assert.rejects(straight.size('new'), ObjectNotFoundError);
  });

  test('no response permanently: unavailable, after a bounded number of attempts', async () => {
    always({ hang: true });
    const asked = [impatient.get('k'), impatient.put('new', [body])];
    for (const each of await Promise.allSettled(asked)) {
      assert(each.status === 'rejected' && unavailable(/, 4 times$/)(each.reason));
    }
    assert.equal(proxy.seen.length, 8);
    proxy.heal();
    await assert.rejects(straight.size('new'), ObjectNotFoundError);
  });

  const REFUSED = [
    ['AccessDenied', 403, /these credentials may not do that \(403 AccessDenied\)$/],
    ['InvalidAccessKeyId', 403, /the access key id is not known there/],
    ['NoSuchBucket', 404, /the bucket does not exist/],
    ['InvalidRequest', 400, /it refuses the request \(400 InvalidRequest\)$/],
  ] as const;
  for (const [code, status, why] of REFUSED) {
    test(`${status} ${code} fails at once, because a retry would not help`, async () => {
      always({ answer: { status, code } });
      await assert.rejects(store.get('k'), unavailable(why));
      await assert.rejects(store.put('new', [body]), unavailable(why));
      assert.equal(proxy.seen.length, 2);
      await assert.rejects(store.check(), unavailable(why));
    });
  }

  test('a 404 of a proxy does not make an object missing', async () => {
    always({ answer: { status: 404, code: '<html>' } });
    for (const range of [undefined, { offset: 1, length: 2 }, { offset: 0, length: 0 }]) {
      await assert.rejects(store.get('k', range), unavailable(/the bucket does not exist/));
    }
    await assert.rejects(store.size('k'), unavailable(/the bucket does not exist/));
    proxy.heal();
    await assert.rejects(store.get('none'), ObjectNotFoundError);
  });

  test('a truncated response body is never returned', async () => {
    for (const [toxic, from, times] of [
      [{ cut_answer_at: 100_000 }, store, 2],
      [{ cut_answer_at: 0 }, store, 2],
      [{ stall_answer_at: 100_000 }, impatient, 1],
    ] as const) {
      first(times, toxic);
      assert((await from.get('k')).equals(body));
      assert.equal(proxy.seen.length, times + 1);
      first(times, toxic);
      assert((await from.get('k', { offset: 1, length: 299_999 })).equals(body.subarray(1)));
      always(toxic);
      await assert.rejects(from.get('k'), unavailable(/, 4 times$/));
      await assert.rejects(from.get('k', { offset: 1, length: 299_999 }), unavailable(/, 4 times$/));
    }
  });

  test('a response with another range than requested is refused', async () => {
    proxy.poison(() => ({ status: 200 }));
    const ranged = store.get('k', { offset: 1, length: 299_999 });
    await assert.rejects(ranged, unavailable(/another range than the request, 4 times$/));
  });

  test('an upload that is cut off is sent again, completely', async () => {
    first(3, { cut_request_at: 100_000 });
    await store.put('new', [body]);
    assert((await straight.get('new')).equals(body));
  });

  test('an upload that is changed on its way is refused by the store and sent again', async () => {
    first(2, { flip_request_at: 1_000 });
    await store.put('new', [body]);
    assert.equal(proxy.seen.length, 3);
    assert((await straight.get('new')).equals(body));
    always({ flip_request_at: 1_000 });
    await assert.rejects(store.put('other', [body]), unavailable(/400 XAmzContentSHA256Mismatch, 4 times$/));
    proxy.heal();
    await assert.rejects(straight.size('other'), ObjectNotFoundError);
  });

  test('a write with a lost response exists, and its retry reports a taken key', async () => {
    first(1, { lose_answer: true });
    await assert.rejects(store.put('new', [body]), ObjectExistsError);
    assert((await straight.get('new')).equals(body));
  });

  test('an unreachable store is unavailable, and is used again when it is back', async () => {
    await proxy.cut();
    await assert.rejects(store.get('k'), unavailable(/nothing listens there \(ECONNREFUSED\), 4 times$/));
    await assert.rejects(store.check(), unavailable(/ECONNREFUSED/));
    await proxy.mend();
    assert((await store.get('k')).equals(body));
    await store.check();
  });

  test('a slow store is waited for', async () => {
    always({ delay_ms: 150 });
    assert((await store.get('k')).equals(body));
    await store.put('new', [body]);
    assert.equal(proxy.seen.length, 2);
  });

  test('an aborted signal ends a hanging request, a pause between attempts, and a wait for a connection', async () => {
    const patient = new S3Store(settings, {
      patience: { backoff_base_ms: 600_000, backoff_max_ms: 600_000, requests_max: 1 },
    });
    const reason = new Error('enough');
    for (const toxic of [{ hang: true }, { answer: { status: 503, code: 'SlowDown' } }]) {
      const stop = new AbortController();
      const asked = Promise.withResolvers<void>();
      proxy.poison(() => {
        asked.resolve();
        return toxic;
      });
      const all = [patient.put('new', [body], stop.signal), patient.get('k', undefined, stop.signal)];
      await asked.promise;
      stop.abort(reason);
      const outcomes = await Promise.allSettled(all);
      for (const outcome of outcomes) {
        assert.deepEqual(outcome, { status: 'rejected', reason });
      }
    }
    proxy.heal();
    assert((await patient.get('k')).equals(body), 'its turn comes again');
    patient.close();
  });

  test('requests beyond the number of connections wait for a connection', async () => {
    const narrow = new S3Store(settings, { patience: { ...PATIENCE, requests_max: 2 } });
    // Long enough that all that may be under way at once are.
    proxy.poison(() => ({ delay_ms: 20 }));
    const reads = await Promise.all(Array.from({ length: 30 }, () => narrow.get('k')));
    assert(reads.every((read) => read.equals(body)));
    assert.equal(proxy.most_at_once, 2);
    narrow.close();
  });

  test('a store without create-only writes is detected by the check, once, and asked before each write', async () => {
    const REFUSES = { answer: { status: 501, code: 'NotImplemented' } };
    for (const toxic of [REFUSES, { status: 200 }]) {
      const log = logLines();
      const simple = new S3Store(settings, { patience: PATIENCE, log: log.log });
      proxy.poison(({ headers }) => (headers['if-none-match'] === undefined ? undefined : toxic));
      await simple.check();
      await simple.check();
      assert.equal(proxy.seen.filter(({ headers }) => headers['if-none-match'] !== undefined).length, 1);
      assert.equal(log.lines.filter((line) => line.includes('no create-only writes')).length, 1);
      await assert.rejects(simple.put('k', [Buffer.from('other')]), ObjectExistsError);
      await simple.put(`new-${toxic === REFUSES}`, [body]);
      assert((await straight.get('k')).equals(body));
      assert((await straight.get(`new-${toxic === REFUSES}`)).equals(body));
      simple.close();
    }
  });

  test('a store that refuses the condition is written to even before its first check', async () => {
    proxy.poison(({ headers }) =>
      headers['if-none-match'] === undefined
        ? undefined
        : { answer: { status: 501, code: 'NotImplemented' } },
    );
    await store.put('new', [body]);
    await assert.rejects(store.put('new', [Buffer.from('other')]), ObjectExistsError);
    assert((await straight.get('new')).equals(body));
  });

  test('over https, an untrusted certificate is refused, and a trusted one accepted', async (t) => {
    const certificate = await selfSigned();
    const safe = await ToxicProxy.open(server.port, { tls: certificate });
    const store = new S3Store({ ...settings, endpoint: safe.endpoint }, { patience: PATIENCE });
    t.after(async () => {
      store.close();
      await safe.cut();
    });
    const refused = /its certificate is not trusted \(DEPTH_ZERO_SELF_SIGNED_CERT\)$/;
    await assert.rejects(store.get('k'), refused);
    await assert.rejects(store.check(), refused);
    assert.equal(safe.seen.length, 0);
    const trusted = getCACertificates();
    setDefaultCACertificates([...trusted, certificate.cert]);
    t.after(() => setDefaultCACertificates(trusted));
    await store.check();
    assert((await store.get('k')).equals(body));
  });

  test('the check reports wrong credentials and a missing bucket, without a secret', async () => {
    const wrong: readonly (readonly [Partial<S3Settings>, RegExp])[] = [
      [{ secret_access_key: 'not-this-one' }, /the secret access key is wrong/],
      [{ access_key_id: 'nobody' }, /the access key id is not known there/],
      [{ access_key_id: null, secret_access_key: null }, /no credentials were found/],
    ];
    for (const [change, why] of wrong) {
      const other = new S3Store({ ...settings, ...change }, { patience: PATIENCE });
      await assert.rejects(other.check(), unavailable(why));
      other.close();
    }
    const nowhere = new S3Store({ ...settings, bucket: 'no-such-bucket' }, { patience: PATIENCE });
    const put = () => nowhere.put('k', [body]);
    for (const ask of [() => nowhere.check(), () => nowhere.size('k'), () => nowhere.get('k'), put]) {
      await assert.rejects(
        ask,
        /^ObjectStoreUnavailableError: s3 bucket no-such-bucket at .*: the bucket does/,
      );
    }
    nowhere.close();
  });
});
