/** Connects the MCP SDK's own client to `/mcp` or to `berth mcp`. */
import assert from 'node:assert/strict';
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import { BERTH } from './cli.ts';

/** The revision without an `initialize`, or the one with it. */
export type Revision = 'modern' | 'legacy';
export const REVISIONS: readonly Revision[] = ['modern', 'legacy'];

export interface Told {
  readonly failed: boolean;
  /** Of Berth. */
  readonly text: string;
  /** Of the guest; empty without such a block. */
  readonly of_guest: string;
}

export class McpClient {
  readonly client: Client;

  private constructor(revision: Revision) {
    const mode = revision === 'legacy' ? 'legacy' : { pin: '2026-07-28' };
    this.client = new Client({ name: 'test', version: '1' }, { versionNegotiation: { mode } });
  }

  static async overHttp(
    origin: string,
    token: string,
    { revision = 'modern' as Revision, headers = {} as Record<string, string> } = {},
  ): Promise<McpClient> {
    const connected = new McpClient(revision);
    const requestInit = { headers: { authorization: `Bearer ${token}`, ...headers } };
    await connected.client.connect(
      new StreamableHTTPClientTransport(new URL('/mcp', origin), { requestInit }),
    );
    return connected;
  }

  static async overStdio(env: Record<string, string>, revision: Revision = 'modern'): Promise<McpClient> {
    const connected = new McpClient(revision);
    await connected.client.connect(
      new StdioClientTransport({ command: BERTH, args: ['mcp'], env, stderr: 'inherit' }),
    );
    return connected;
  }

  close(): Promise<void> {
    return this.client.close();
  }

  async call(name: string, args: Record<string, unknown> = {}): Promise<Told> {
    const { content, isError } = await this.client.callTool({ name, arguments: args });
    const [text = '', of_guest = ''] = content.map((block) => {
      assert(block.type === 'text');
      return block.text;
    });
    return { failed: isError === true, text, of_guest };
  }

  /** The text of a call that succeeds. */
  async done(name: string, args: Record<string, unknown> = {}): Promise<Told> {
    const told = await this.call(name, args);
    assert.equal(told.failed, false, told.text);
    return told;
  }

  /** The text of a tool error. */
  async fails(name: string, args: Record<string, unknown> = {}): Promise<string> {
    const told = await this.call(name, args);
    assert.equal(told.failed, true, told.text);
    return told.text;
  }
}
