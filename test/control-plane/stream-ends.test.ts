/** What ends each stream of a caller: a table, each cell of which is a test. The host's side is a scripted agent. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Duplex } from 'node:stream';
import { after, describe, test } from 'node:test';
import { WebSocket } from 'ws';
import { freeDeleted } from '../../src/control-plane/disks/remove-objects.ts';
import { FolderStore } from '../../src/object-store/folder-store.ts';
import { FRAME, offsetBytes, streamFrame } from '../../src/protocol/exec-types.ts';
import type { InstanceId } from '../../src/shared/ids.ts';
import { apiForFile, startApi, type TestApi } from '../support/api.ts';
import { makeExec } from '../support/execs.ts';
import { FIELDS, nextFileCall } from '../support/file-host.ts';
import { makeKey } from '../support/people.ts';
import { instanceIn } from '../support/states.ts';

const folder = await mkdtemp(join(tmpdir(), 'berth-objects-'));
after(() => rm(folder, { recursive: true, force: true }));
const store = await FolderStore.open(folder);

/** What ends a stream. */
const ENDS = ['agent', 'control plane', 'VM', 'instance', 'key', 'member'] as const;
type End = (typeof ENDS)[number];

interface Scene {
  readonly api: TestApi;
  readonly id: InstanceId;
  /** Of the reader. */
  readonly token: string;
}

interface Opened {
  /** The host's end; null: no host takes part. */
  readonly line: Duplex | null;
  /** What its reader gets last: the name of an event, a close code, or `cut`. */
  readonly ended: Promise<string>;
}

type Open = (scene: Scene) => Promise<Opened>;

async function lineOf(api: TestApi, kind: 'exec_stream' | 'console' | 'port'): Promise<Duplex> {
  const { id } = await api.agent.nextCall(kind);
  const line = await api.agent.client.openConsole(id);
  line.on('error', () => undefined);
  line.resume();
  return line;
}

const headersOf = (token: string) => ({ authorization: `Bearer ${token}` });

/** The last event, its error's code with it; `cut`: there was none. */
async function lastEvent(response: Response): Promise<string> {
  const text = await response.text().catch(() => '');
  const events = [...text.matchAll(/^event: (\w+)\ndata: (.*)$/gm)];
  const [, name = 'cut', data = '{}'] = events.at(-1) ?? [];
  return name === 'end' ? `end ${JSON.parse(data).code}` : name;
}

/** The answer's end: `whole`, or `cut`. */
const wholeness = (response: Response) =>
  response.bytes().then(
    () => 'whole',
    () => 'cut',
  );

async function webSocket({ api, token }: Scene, path: string): Promise<WebSocket> {
  const socket = new WebSocket(`${api.origin.replace('http', 'ws')}${path}`, { headers: headersOf(token) });
  socket.on('error', () => undefined);
  return socket;
}

async function closeOf(socket: WebSocket): Promise<string> {
  const [code] = await once(socket, 'close');
  return String(code);
}

async function execIn({ api, id }: Scene): Promise<string> {
  const exec_id = await makeExec(api.db, { instance_id: id, host_id: api.host_id }, 'running');
  return `/v1/instances/${id}/execs/${exec_id}`;
}

const STREAMS: Readonly<
  Record<string, { readonly open: Open; readonly ends: Partial<Record<End, string>> }>
> = {
  'the output of an exec, followed': {
    open: async (scene) => {
      const path = `${await execIn(scene)}/output?follow=true`;
      const asked = fetch(scene.api.origin + path, { headers: headersOf(scene.token) });
      const line = await lineOf(scene.api, 'exec_stream');
      line.write(streamFrame(FRAME.attached, offsetBytes(0)));
      return { line, ended: lastEvent(await asked) };
    },
    ends: {
      agent: 'cut',
      'control plane': 'cut',
      VM: 'exit',
      instance: 'end NOT_FOUND',
      key: 'end UNAUTHENTICATED',
      member: 'end UNAUTHENTICATED',
    },
  },
  'the kept output of an exec': {
    open: async (scene) => {
      const path = `${await execIn(scene)}/output`;
      const asked = fetch(scene.api.origin + path, { headers: headersOf(scene.token) });
      const line = await lineOf(scene.api, 'exec_stream');
      line.write(streamFrame(FRAME.attached, offsetBytes(0)));
      line.write(streamFrame(FRAME.stdout, offsetBytes(0), Buffer.from('half')));
      return { line, ended: wholeness(await asked) };
    },
    ends: { agent: 'cut', 'control plane': 'cut', instance: 'cut', key: 'cut', member: 'cut' },
  },
  'the stream to an exec': {
    open: async (scene) => {
      const socket = await webSocket(scene, `${await execIn(scene)}/stream`);
      const line = await lineOf(scene.api, 'exec_stream');
      await once(socket, 'open');
      return { line, ended: closeOf(socket) };
    },
    ends: {
      agent: '1001',
      'control plane': '1001',
      VM: '1000',
      instance: '1008',
      key: '1008',
      member: '1008',
    },
  },
  'the console': {
    open: async (scene) => {
      const path = `/v1/instances/${scene.id}/vm/console`;
      const made = await scene.api.as(scene.token).post<{ ticket: string }>(`${path}/ticket`);
      const socket = await webSocket(scene, `${path}/stream?ticket=${made.body.ticket}`);
      const line = await lineOf(scene.api, 'console');
      await once(socket, 'open');
      return { line, ended: closeOf(socket) };
    },
    ends: {
      agent: '1000',
      'control plane': '1001',
      VM: '1000',
      // Whether a check finds it deleting, or gone.
      instance: '1000 or 1008',
      key: '1008',
      member: '1008',
    },
  },
  'a forwarded connection': {
    open: async (scene) => {
      const socket = await webSocket(scene, `/v1/instances/${scene.id}/vm/forward?port=5432`);
      socket.on('message', (data) => {
        if (String(data) === 'end') socket.send('end');
      });
      const line = await lineOf(scene.api, 'port');
      await once(socket, 'open');
      return { line, ended: closeOf(socket) };
    },
    ends: {
      agent: '1000',
      'control plane': '1001',
      VM: '1000',
      // Whether a check finds it deleting, or gone.
      instance: '1000 or 1008',
      key: '1008',
      member: '1008',
    },
  },
  'the events': {
    open: async ({ api, token }) => {
      const asked = await fetch(`${api.origin}/v1/events/stream?type=webhook.ping`, {
        headers: headersOf(token),
      });
      return { line: null, ended: lastEvent(asked) };
    },
    ends: { 'control plane': 'cut', key: 'end UNAUTHENTICATED', member: 'end UNAUTHENTICATED' },
  },
  'the notifications': {
    open: async ({ api, token }) => {
      const asked = await fetch(`${api.origin}/v1/notifications/stream`, { headers: headersOf(token) });
      return { line: null, ended: lastEvent(asked) };
    },
    // A key has none.
    ends: { 'control plane': 'unread', member: 'end UNAUTHENTICATED' },
  },
  'a file that is read': {
    open: async ({ api, id, token }) => {
      const asked = fetch(`${api.origin}/v1/instances/${id}/files?path=/a`, { headers: headersOf(token) });
      const host = await nextFileCall(api.agent);
      host.say('opened', FIELDS);
      await host.hear('range');
      host.say('content', 'half');
      return { line: host.line, ended: wholeness(await asked) };
    },
    ends: { agent: 'cut', 'control plane': 'cut', VM: 'cut', instance: 'cut', key: 'cut', member: 'cut' },
  },
  'a file that is written': {
    open: async ({ api, id, token }) => {
      const body = new ReadableStream({ start: (writing) => writing.enqueue(Buffer.from('half')) });
      const asked = fetch(`${api.origin}/v1/instances/${id}/files?path=/a`, {
        ...{ method: 'PUT', headers: headersOf(token), body },
        ...{ duplex: 'half' as const },
      });
      const host = await nextFileCall(api.agent);
      host.say('opened');
      await host.hear('content');
      const ended = asked.then(
        ({ status }) => String(status),
        () => 'cut',
      );
      return { line: host.line, ended };
    },
    ends: {
      agent: '503',
      'control plane': 'cut',
      VM: '409',
      instance: '409 or 404',
      key: '503',
      member: '503',
    },
  },
};

const api = await apiForFile({ context: { heartbeat_ms: 50 } });
const owner = await api.person();

describe('a stream ends', { timeout: 240_000 }, () => {
  /** A running VM, and a credential of `kind` to reach it. */
  async function scene(
    kind: 'session' | 'key' | 'member',
  ): Promise<Scene & { readonly take: () => unknown }> {
    const { id } = await instanceIn(api, owner, 'running');
    if (kind === 'key') {
      const made = await makeKey(api.db, owner, '*');
      const take = () => api.db.deleteFrom('api_keys').where('id', '=', made.id).execute();
      return { api, id, token: made.key, take };
    }
    const who = kind === 'member' ? await api.person({ org_id: owner.org_id, role: 'member' }) : owner;
    const take = () => api.db.deleteFrom('memberships').where('user_id', '=', who.user_id).execute();
    return { api, id, token: who.session, take };
  }

  for (const [name, { open, ends }] of Object.entries(STREAMS)) {
    for (const [end, expected] of Object.entries(ends) as [End, string][]) {
      if (end === 'control plane') continue;
      test(`${name}, with its ${end}: ${expected}`, { timeout: 20_000 }, async () => {
        const { take, ...place } = await scene(end === 'key' || end === 'member' ? end : 'session');
        const { line, ended } = await open(place);
        if (end === 'agent') line?.end();
        if (end === 'key' || end === 'member') await take();
        if (end === 'VM') await api.agent.failed(place.id);
        if (end === 'instance') {
          assert.equal((await api.as(owner).delete(`/v1/instances/${place.id}`)).status, 202);
          await api.agent.known(place.id);
          await api.agent.deleted(place.id);
          await freeDeleted(api.db, store, api.context.log);
        }
        const found = await ended;
        assert.ok(expected.split(' or ').includes(found), found);
        line?.destroy();
      });
    }
  }

  test('each of them with its control plane', { timeout: 30_000 }, async () => {
    const other = await startApi();
    after(() => other.close());
    const who = await other.person();
    const { id } = await instanceIn(other, who, 'running');
    const opened: [string, Opened][] = [];
    for (const [name, { open }] of Object.entries(STREAMS))
      opened.push([name, await open({ api: other, id, token: who.session })]);
    await other.app.close();
    const found = await Promise.all(opened.map(async ([name, { ended }]) => [name, await ended]));
    assert.deepEqual(
      found,
      Object.entries(STREAMS).map(([name, { ends }]) => [name, ends['control plane']]),
    );
    for (const [, { line }] of opened) line?.destroy();
  });
});
