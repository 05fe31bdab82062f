/**
 * Makes an internet for guests on this machine: a network namespace with a public address and a server, and a route to
 * it.
 */
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';

const run = promisify(execFile);
const NAME = `berth-outside-${process.pid}`;
const LINK = `out${process.pid}`;
/** For documentation (RFC 5737), so it belongs to nobody and guests may reach it. */
export const OUTSIDE = `198.51.100.${1 + (process.pid % 250)}`;
/** Of this host on the link, in a range that guests may not reach. */
const NEAR = '192.0.0.8';

export class Outside implements AsyncDisposable {
  readonly #server: ChildProcess;

  private constructor(server: ChildProcess) {
    this.#server = server;
  }

  static async open(): Promise<Outside> {
    await run('ip', ['netns', 'add', NAME]);
    try {
      await ip('link', 'add', LINK, 'type', 'veth', 'peer', 'name', 'eth0', 'netns', NAME);
      await ip('address', 'add', `${NEAR}/32`, 'dev', LINK);
      await ip('link', 'set', 'dev', LINK, 'up');
      await ip('-n', NAME, 'address', 'add', `${OUTSIDE}/32`, 'dev', 'eth0');
      for (const each of ['eth0', 'lo']) await ip('-n', NAME, 'link', 'set', 'dev', each, 'up');
      await ip('-n', NAME, 'route', 'add', NEAR, 'dev', 'eth0');
      await ip('-n', NAME, 'route', 'add', 'default', 'via', NEAR, 'dev', 'eth0');
      await ip('route', 'add', `${OUTSIDE}/32`, 'dev', LINK, 'src', NEAR);
      // Berth lets only the default route's interface forward.
      await writeFile(`/proc/sys/net/ipv4/conf/${LINK}/forwarding`, '1');
      const program = join(import.meta.dirname, 'outside-server.ts');
      const words = [`--net=/run/netns/${NAME}`, process.execPath, program];
      const server = spawn('nsenter', words, { stdio: ['ignore', 'pipe', 'inherit'] });
      await once(server.stdout, 'data');
      return new Outside(server);
    } catch (error) {
      await removeNamespace();
      throw error;
    }
  }

  /** Runs a program in it. */
  async inside(...command: string[]): Promise<string> {
    return (await run('nsenter', [`--net=/run/netns/${NAME}`, ...command])).stdout;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.kill('SIGKILL');
    await removeNamespace();
  }
}

async function removeNamespace(): Promise<void> {
  await ip('link', 'delete', LINK).catch(() => undefined);
  await ip('netns', 'delete', NAME).catch(() => undefined);
}

async function ip(...args: string[]): Promise<void> {
  await run('ip', args);
}
