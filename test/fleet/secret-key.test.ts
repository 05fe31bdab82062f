/** A new secret key while two control planes serve: nothing is interrupted, all that was sealed opens, and the old key is refused. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { Webhook } from 'standardwebhooks';
import { parseJoinToken } from '../../src/protocol/protocol.ts';
import type { InstanceId } from '../../src/shared/ids.ts';
import type { SimulatedHost } from '../simulated-host/simulated-host.ts';
import { type ControlPlaneProcess, FleetLab, untilKnown } from '../support/fleet-lab.ts';
import { makePerson, type Person } from '../support/people.ts';
import { ScriptedAgent } from '../support/scripted-agent.ts';
import { totpCode } from '../support/totp-code.ts';
import { until } from '../support/waiting.ts';
import { type MadeWebhook, startRecorder } from '../support/webhooks.ts';

const BERTH = join(import.meta.dirname, '..', '..', 'bin', 'berth');
const PASSWORD = 'correct horse battery';
const SECRET = { value: 'sk-sealed-before', hosts: ['api.example.com'] };

interface Answer<T> {
  readonly status: number;
  readonly body: T;
  /** The only one that it sets. */
  readonly cookie: string;
}

const recorder = await startRecorder();

describe('a rotation of the secret key', { timeout: 600_000 }, () => {
  let lab: FleetLab;
  let a: ControlPlaneProcess;
  let b: ControlPlaneProcess;
  let owner: Person;
  let host: SimulatedHost;
  let id: InstanceId;
  let at_host: { readonly token: string; readonly fingerprint: string };
  /** What was made before the rotation, with the old key. */
  let kept: {
    readonly keys: unknown;
    readonly cursor: string;
    readonly webhook: MadeWebhook;
    readonly factor: { readonly secret: string };
    readonly made: unknown;
  };
  let refresh_cookie: string;
  const new_key = () => join(lab.folder, 'new-key');

  async function ask<T>(
    { port }: ControlPlaneProcess,
    method: string,
    path: string,
    body?: unknown,
    headers: Record<string, string> = {},
  ): Promise<Answer<T>> {
    const response = await fetch(`http://127.0.0.1:${port}${path}`, {
      method,
      headers: {
        authorization: `Bearer ${owner.session}`,
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        ...headers,
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    const text = await response.text();
    const [cookie = ''] = (response.headers.getSetCookie()[0] ?? '').split(';');
    return { status: response.status, body: (text === '' ? null : JSON.parse(text)) as T, cookie };
  }
  async function made<T>(
    at: ControlPlaneProcess,
    path: string,
    body: unknown,
    headers: Record<string, string> = {},
  ): Promise<T> {
    const answer = await ask<T>(at, 'POST', path, body, headers);
    assert.ok(answer.status < 300, JSON.stringify(answer.body));
    return answer.body;
  }

  const start = (change: Readonly<Record<string, string>> = {}) =>
    lab.controlPlane({ BERTH_WEBHOOK_ALLOW_CIDRS: '127.0.0.0/8', ...change });
  const withNewKey = async () => ({ BERTH_SECRET_KEY: (await readFile(new_key(), 'utf8')).trim() });
  /** `bin/berth`, which must succeed. Returns what it says. */
  async function berth(change: Readonly<Record<string, string>>, ...args: string[]): Promise<string> {
    const env = { ...(await lab.settings()), ...change };
    return new Promise((resolve, reject) => {
      execFile(BERTH, args, { env }, (error, out, err) =>
        error === null ? resolve(out) : reject(new Error(`${args.join(' ')}: ${err}`)),
      );
    });
  }

  /** What a host gets of this control plane: the keys of the disk, and the secret. */
  async function given(
    at: ControlPlaneProcess,
  ): Promise<{ readonly keys: unknown; readonly secret: unknown }> {
    const { token, fingerprint } = at_host;
    const there = new ScriptedAgent(`https://127.0.0.1:${at.hosts_port}`, token, fingerprint);
    try {
      const { secrets = [] } = await there.assigned(id);
      return { keys: (await there.client.head(id))?.keys, secret: secrets[0]?.value };
    } finally {
      await there.close();
    }
  }

  /** Everything that was sealed or signed before works at this control plane, and calls go through the others. */
  async function worksAt(at: ControlPlaneProcess): Promise<void> {
    assert.deepEqual(await given(at), { keys: kept.keys, secret: SECRET.value });
    const ran = await ask<{ stdout: string }>(at, 'POST', `/v1/instances/${id}/vm/exec`, {
      command: ['echo', 'ran'],
    });
    assert.deepEqual([ran.status, ran.body.stdout], [200, 'ran\n'], at.output());
    const page = await ask<{ data: unknown[] }>(at, 'GET', `/v1/instances?limit=1&cursor=${kept.cursor}`);
    assert.deepEqual([page.status, page.body.data.length], [200, 1]);
    const replayed = await made(at, '/v1/instances', { name: 'once' }, { 'idempotency-key': 'once' });
    assert.deepEqual(replayed, kept.made);
    const refreshed = await ask(at, 'POST', '/v1/auth/refresh', undefined, { cookie: refresh_cookie });
    assert.equal(refreshed.status, 200, JSON.stringify(refreshed.body));
    refresh_cookie = refreshed.cookie;
    const from = recorder.got.length;
    await made(at, `/v1/webhooks/${kept.webhook.id}/ping`, undefined);
    const got = await until('the webhook is called', () => recorder.got[from]);
    new Webhook(kept.webhook.secret).verify(got.body, { ...got.headers });
  }

  before(async () => {
    lab = await FleetLab.start();
    a = await start();
    b = await start();
    const join_token = await lab.token('rack-1');
    at_host = parseJoinToken(join_token) ?? assert.fail('a join token');
    host = await lab.hostWith(join_token, a.hosts_port);
    await untilKnown(host, 2);
    owner = await makePerson(lab.database.db, { password: PASSWORD });
    await made(a, '/v1/instances', { name: 'another' });
    ({ id } = await made<{ id: InstanceId }>(a, '/v1/instances', { name: 'first' }));
    assert.equal((await ask(a, 'PUT', `/v1/instances/${id}/secrets/TOKEN`, SECRET)).status, 204);
    await made(a, `/v1/instances/${id}/vm`, undefined);
    await until('it runs', async () => {
      const { body } = await ask<{ state: string }>(a, 'GET', `/v1/instances/${id}/vm`);
      return body.state === 'running';
    });
    const first = await ask<{ next_cursor: string }>(a, 'GET', '/v1/instances?limit=1');
    const sudo = await ask(a, 'POST', '/v1/auth/sudo', { password: PASSWORD });
    const login = await ask(a, 'POST', '/v1/auth/login', { email: owner.email, password: PASSWORD });
    refresh_cookie = login.cookie;
    const headers = { cookie: sudo.cookie };
    const body = { type: 'totp', name: 'phone' };
    const factor = await made<{ id: string; secret: string }>(a, '/v1/me/mfa/factors', body, headers);
    const code = totpCode(factor.secret, Date.now() / 1000);
    await made(a, `/v1/me/mfa/factors/${factor.id}/verify`, { code });
    kept = {
      keys: (await given(a)).keys,
      cursor: encodeURIComponent(first.body.next_cursor),
      webhook: await made(a, '/v1/webhooks', { name: 'hook', url: recorder.url, events: ['member.added'] }),
      factor,
      made: await made(a, '/v1/instances', { name: 'once' }, { 'idempotency-key': 'once' }),
    };
    assert.ok(Array.isArray(kept.keys) && kept.keys.length > 0, 'the host gets keys');
  });
  after(() => lab?.dispose());

  test('with two keys, one control plane after the other gets the new one, and each serves what the other has sealed', async () => {
    for (const at of [a, b]) await worksAt(at);
    await berth({}, 'secret-key', 'rotate', new_key());
    for (const at of [a, b]) await worksAt(at);
    await a.kill('SIGTERM');
    a = await start(await withNewKey());
    for (const at of [a, b]) await worksAt(at);
    // The one that it was given is gone: it must have learned of both before the next is stopped.
    await untilKnown(host, 3);
  });

  test('the old key is forgotten while one still runs with it: that goes on, and is refused at its next start', async () => {
    await berth(await withNewKey(), 'secret-key', 'forget-old');
    for (const at of [a, b]) await worksAt(at);
    await b.kill('SIGTERM');
    const refused = lab.run(await lab.settings(), 'start', 'control-plane');
    const [code] = await once(refused.child, 'exit');
    assert.equal(code, 2, refused.output());
    assert.match(refused.output(), /^berth: BERTH_SECRET_KEY: is not the key of this database; [^\n]+$/m);
    b = await start(await withNewKey());
    for (const at of [a, b]) await worksAt(at);
  });

  test('second factors and the audit log open with the new key', async () => {
    const login = { email: owner.email, password: PASSWORD };
    assert.notEqual((await ask(b, 'POST', '/v1/auth/login', login)).status, 200);
    // A code is good once; that of the next step is taken already.
    const totp_code = totpCode(kept.factor.secret, Date.now() / 1000 + 30);
    const proven = await ask(b, 'POST', '/v1/auth/login', { ...login, totp_code });
    assert.equal(proven.status, 200, JSON.stringify(proven.body));
    const said = await berth(await withNewKey(), 'audit', 'verify');
    assert.match(said, new RegExp(`\\(${owner.org_id}\\): [1-9]\\d* entries, intact`));
  });
});
