/** How a host on another machine gets its credential, keeps it and replaces it. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { sql } from 'kysely';
import { addHost, listHosts, rotateHost } from '../../src/cli/server/hosts.ts';
import { hashToken } from '../../src/control-plane/identity/tokens.ts';
import { HostCredential } from '../../src/launcher/join.ts';
import { StartError } from '../../src/launcher/start-error.ts';
import { ControlPlaneClient, CredentialRefused } from '../../src/protocol/client.ts';
import { parseJoinToken } from '../../src/protocol/protocol.ts';
import { apiForFile } from '../support/api.ts';
import { joinWith, listenToRemoteHosts } from '../support/remote-hosts.ts';
import { FACTS } from '../support/scripted-agent.ts';

const api = await apiForFile();
const { db } = api;
const far = await listenToRemoteHosts(api);
const folder = mkdtempSync(join(tmpdir(), 'bcred-'));
after(() => rmSync(folder, { recursive: true, force: true }));

const add = async (name: string) => (await addHost(far.server, name, { cpus: '4', memory: '4' })).trim();
const beat = { facts: FACTS, disks: [] };
/** A call with that token. */
async function heartbeat({ token, fingerprint }: { readonly token: string; readonly fingerprint: string }) {
  const client = new ControlPlaneClient({ address: far.origin, token, fingerprint });
  try {
    return await client.heartbeat(beat);
  } finally {
    await client.close();
  }
}
const sha256 = (text: string) => createHash('sha256').update(text).digest('hex');

describe('a join token', () => {
  test('works once, and repeats for the same credential, whose answer may have been lost', async () => {
    const text = await add('one');
    const parsed = parseJoinToken(text) ?? assert.fail('a token');
    assert.match(parsed.token, /^berth_join_/);
    await assert.rejects(heartbeat(parsed), CredentialRefused, 'it is no credential');
    const client = new ControlPlaneClient({ address: far.origin, ...parsed });
    const mine = { credential_sha256: sha256('mine') };
    const first = await client.join(mine);
    assert.deepEqual(await client.join(mine), first);
    await assert.rejects(
      client.join({ credential_sha256: sha256('of a thief') }),
      /was used, or has expired/,
    );
    assert.equal((await heartbeat({ ...parsed, token: 'mine' })).host_id, first.host_id);
    await assert.rejects(client.poll({ seen: null }, AbortSignal.timeout(5_000)), CredentialRefused);
    await client.close();
    const kept = JSON.stringify(await db.selectFrom('hosts').selectAll().execute());
    assert.ok(!kept.includes(parsed.token.slice(0, 30)), 'at rest there is a hash');
  });

  test('expires, and is replaced by another one', async () => {
    const late = await add('two');
    await db.updateTable('hosts').set({ join_expires_at: sql`now()` }).where('name', '=', 'two').execute();
    await assert.rejects(joinWith(far.origin, late), /was used, or has expired/);
    const lost = await rotateHost(far.server, 'two', true);
    const text = await rotateHost(far.server, 'two', true);
    await assert.rejects(joinWith(far.origin, lost), CredentialRefused);
    const joined = await joinWith(far.origin, text);
    await heartbeat(joined);
    await assert.rejects(add('two'), /there is a host two already/);
    assert.match(await listHosts(far.server), /^two +up/m);
  });
});

describe("a host's credential", () => {
  const place = (name: string) => ({
    path: join(folder, `${name}.credential`),
    join_path: join(folder, `${name}.token`),
    control_plane: far.origin,
    log: api.context.log,
    signal: new AbortController().signal,
  });
  const joined = async (name: string) => {
    const at = place(name);
    writeFileSync(at.join_path, await add(name));
    return { at, credential: await HostCredential.open(at) };
  };

  test('is made by the host, private, and used after a restart, without the token too', async () => {
    const { at, credential } = await joined('three');
    assert.equal(statSync(at.path).mode & 0o777, 0o600);
    await heartbeat(credential);
    assert.equal((await HostCredential.open(at)).token, credential.token);
    rmSync(at.join_path);
    assert.equal((await HostCredential.open(at)).token, credential.token);
    writeFileSync(at.path, '{');
    await assert.rejects(HostCredential.open(at), /is damaged\. Remove it/);
  });

  test('survives a death between the request to join and its answer', async () => {
    const { at, credential } = await joined('four');
    writeFileSync(at.path, JSON.stringify({ ...JSON.parse(readFileSync(at.path, 'utf8')), joined: false }));
    const again = await HostCredential.open(at);
    assert.equal(again.token, credential.token);
    await heartbeat(again);
  });

  test('is replaced when its operator says so; the old one is valid until a heartbeat with the new one', async () => {
    const { at, credential } = await joined('five');
    const before = { token: credential.token, fingerprint: credential.fingerprint };
    const client = new ControlPlaneClient({
      address: far.origin,
      token: () => credential.token,
      fingerprint: credential.fingerprint,
    });
    assert.equal((await client.heartbeat(beat)).rotate, undefined);
    assert.match(await rotateHost(far.server, 'five', false), /replaces its credential/);
    assert.equal((await client.heartbeat(beat)).rotate, true);
    // The first try ends before the control plane hears of it.
    await assert.rejects(credential.rotate({ rotate: async () => assert.fail('away') }));
    const next = JSON.parse(readFileSync(at.path, 'utf8')).next as string;
    assert.ok(next.startsWith('berth_host_') && next !== before.token);
    await (await HostCredential.open(at)).rotate(client);
    const after_it = await HostCredential.open(at);
    assert.equal(after_it.token, next);
    await heartbeat(before);
    assert.deepEqual(Object.keys(await heartbeat(after_it)), ['host_id'], 'it is not asked again');
    await assert.rejects(heartbeat(before), CredentialRefused);
    const { token_hash, next_token_hash } = await db
      .selectFrom('hosts')
      .select(['token_hash', 'next_token_hash'])
      .where('name', '=', 'five')
      .executeTakeFirstOrThrow();
    assert.deepEqual([token_hash, next_token_hash], [hashToken(next), null]);
    await client.close();
  });

  test('is replaced after thirty days', async () => {
    const { credential } = await joined('six');
    assert.equal((await heartbeat(credential)).rotate, undefined);
    await db
      .updateTable('hosts')
      .set({ credential_since: sql`now() - interval '31 days'` })
      .where('name', '=', 'six')
      .execute();
    assert.equal((await heartbeat(credential)).rotate, true);
  });

  test('is revoked with --join, and the host joins with the new token', async () => {
    const { at, credential } = await joined('seven');
    const before = { token: credential.token, fingerprint: credential.fingerprint };
    await heartbeat(before);
    const text = await rotateHost(far.server, 'seven', true);
    await assert.rejects(heartbeat(before), CredentialRefused);
    const said = /^seven is refused until it joins with its new token\. Its VMs are paused/m;
    assert.match(await listHosts(far.server), said);
    writeFileSync(at.join_path, text);
    const again = await HostCredential.open(at);
    assert.notEqual(again.token, before.token);
    await heartbeat(again);
    assert.match(await listHosts(far.server), /^seven +up/m);
    assert.doesNotMatch(await listHosts(far.server), said);
    const used = { ...at, path: join(folder, 'copied.credential') };
    await assert.rejects(HostCredential.open(used), StartError);
  });

  test('that an earlier version printed as token stays valid, and can be replaced', async () => {
    const token = `berth_host_${'a'.repeat(49)}`;
    const at = place('eight');
    const text = await add('eight');
    const [, fingerprint] = text.split('.');
    writeFileSync(at.join_path, `${token}.${fingerprint}`);
    await db
      .updateTable('hosts')
      .set({ token_hash: hashToken(token), join_hash: null, join_expires_at: null })
      .where('name', '=', 'eight')
      .execute();
    const credential = await HostCredential.open(at);
    await heartbeat(credential);
    assert.ok(existsSync(at.path));
    await assert.rejects(rotateHost(far.server, 'local', false), /is this machine/);
  });
});
