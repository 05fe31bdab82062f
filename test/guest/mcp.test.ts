/** The tools for models with a real guest, over HTTP with an API key: one story from create to delete. */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { CANNOT_BOOT_GUESTS, type Installation } from '../support/installation.ts';
import { McpClient } from '../support/mcp-client.ts';
import { borrowInstallation, returnInstallation } from '../support/shared-installation.ts';
import { until } from '../support/waiting.ts';

const SMALL = { memory_mib: 256, disk_gib: 2 };

describe('tools for models', { skip: CANNOT_BOOT_GUESTS, timeout: 600_000 }, () => {
  let berth: Installation;
  let mcp: McpClient;
  let generation: number;

  before(async () => {
    berth = await borrowInstallation();
    const body = { name: 'model', scope: 'instances:read instances:write vm:read vm:write' };
    const { key } = await berth.client.expect<{ key: string }>(201, 'POST', '/v1/api-keys', body);
    mcp = await McpClient.overHttp(berth.origin, key);
  });
  after(returnInstallation);

  /** Starts and stops may take longer than a call waits: then the tool says to call it again. */
  const settled = (tool: string, instance: string) =>
    until(`${tool} ${instance} is done`, async () => {
      const { text } = await mcp.done(tool, { instance });
      return !text.includes('Call ') && text;
    });

  test('creates an instance, and runs a command in it', async () => {
    await mcp.done('create_instance', { name: 'bench', ...SMALL });
    assert.match(await settled('start_instance', 'bench'), /^bench is running\./);
    const told = await mcp.done('exec', { instance: 'bench', command: 'echo $0 from $(hostname); exit 3' });
    assert.deepEqual(told, { failed: false, text: 'Exit code 3.', of_guest: 'sh from bench\n' });
  });

  test('a long output is cut, and read on', async () => {
    const { text } = await mcp.done('exec', { instance: 'bench', command: 'seq 1 20000' });
    assert.match(text, /^Exit code 0\. 108894 bytes of output; /);
    const [, exec_id, offset] = /exec_output of (\S+) with offset (\d+)/.exec(text) ?? [];
    const args = { instance: 'bench', exec_id, offset: Number(offset) };
    const more = await mcp.done('exec_output', args);
    const whole = Array.from({ length: 20_000 }, (_, at) => `${at + 1}\n`).join('');
    assert.equal(more.of_guest, whole.slice(Number(offset), Number(offset) + 20_000));
    const end = await mcp.done('exec_output', { ...args, offset: whole.length - 6 });
    assert.deepEqual(end.of_guest, '20000\n');
    assert.match(end.text, /Exit code 0\.$/);
  });

  test('writes a file, reads it in parts, and lists its folder', async () => {
    const content = `é\r\n${'x'.repeat(30_000)}\n`;
    const file = { instance: 'bench', path: '/srv/new/notes 100%.txt' };
    await mcp.done('write_file', { ...file, content, mode: '0600' });
    const first = await mcp.done('read_file', file);
    const [, next] = /More: offset (\d+)\./.exec(first.text) ?? [];
    const second = await mcp.done('read_file', { ...file, offset: Number(next) });
    assert.equal(first.of_guest + second.of_guest, content);
    assert.match(
      (await mcp.done('list_files', { instance: 'bench', path: '/srv/new' })).of_guest,
      /^file {2}30005 {2}0600 {2}root {2}\S+ {2}notes 100%\.txt$/,
    );
    assert.match(
      await mcp.fails('write_file', { ...file, content, overwrite: false }),
      /^PRECONDITION_FAILED: /,
    );
    assert.match(await mcp.fails('read_file', { ...file, path: '/srv/none' }), /^NOT_FOUND: /);
  });

  test('a file that is no text is told as base64', async () => {
    const bytes = Buffer.from([0, 0xff, 0xfe, 10]);
    const file = { instance: 'bench', path: '/srv/bytes' };
    await mcp.done('write_file', { ...file, content: bytes.toString('base64'), encoding: 'base64' });
    const { text, of_guest } = await mcp.done('read_file', file);
    assert.match(text, /base64/);
    assert.deepEqual(Buffer.from(of_guest, 'base64'), bytes);
  });

  test('saves the disk, and forks it', async () => {
    await mcp.done('write_file', { instance: 'bench', path: '/srv/state', content: 'before' });
    const { text } = await mcp.done('flush', { instance: 'bench' });
    generation = Number(/generation (\d+)/.exec(text)?.[1]);
    await mcp.done('write_file', { instance: 'bench', path: '/srv/state', content: 'after' });
    await mcp.done('fork_instance', { instance: 'bench', name: 'branch', generation });
    await settled('start_instance', 'branch');
    assert.equal(
      (await mcp.done('read_file', { instance: 'branch', path: '/srv/state' })).of_guest,
      'before',
    );
    assert.equal((await mcp.done('read_file', { instance: 'bench', path: '/srv/state' })).of_guest, 'after');
  });

  test('sets the disk back, once the instance is stopped', async () => {
    const back = { instance: 'bench', generation };
    assert.match(await mcp.fails('restore_generation', back), /^CONFLICT: /);
    await settled('stop_instance', 'bench');
    assert.match((await mcp.done('restore_generation', back)).text, /To undo: restore_generation \d+\.$/);
    assert.match((await mcp.done('list_generations', { instance: 'bench' })).text, / {2}restore {2}/);
    await settled('start_instance', 'bench');
    assert.equal((await mcp.done('read_file', { instance: 'bench', path: '/srv/state' })).of_guest, 'before');
  });

  test('stops and deletes', async () => {
    for (const instance of ['bench', 'branch']) await settled('stop_instance', instance);
    assert.match(
      await mcp.fails('exec', { instance: 'bench', command: 'true' }),
      /^VM_NOT_RUNNING: .*\nNext: start_instance/,
    );
    assert.match((await mcp.done('list_instances', { state: 'stopped' })).text, /^branch .*\nbench /);
    for (const instance of ['bench', 'branch']) await mcp.done('delete_instance', { instance });
    await until(
      'both are gone',
      async () => (await mcp.done('list_instances')).text === 'There are no such instances.',
    );
  });
});
