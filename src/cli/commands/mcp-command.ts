/** `berth mcp`: the tools for models, over stdin and stdout. */
import { once } from 'node:events';
import type { Call, Command } from '../command.ts';
import { version } from '../version.ts';

async function serve({ session, signal, terminal }: Call): Promise<undefined> {
  // A missing login is told now, where the client's log shows it, and not by each tool.
  const berth = session.berth();
  // Loaded by this command alone.
  const { serveStdio } = await import('@modelcontextprotocol/server/stdio');
  const { mcpServer } = await import('../../mcp/mcp-server.ts');
  const { stdin } = process;
  const ended = once(stdin, 'end', { signal });
  const handle = serveStdio(() => mcpServer(berth, version()), {
    onerror: (error) => terminal.warn(`berth mcp: ${error.message}`),
    maxSubscriptions: 0,
  });
  try {
    await ended;
  } finally {
    await handle.close();
    stdin.destroy();
  }
  signal.throwIfAborted();
}

export const MCP: Command = {
  name: 'mcp',
  summary: 'serve the tools of the Model Context Protocol to a program on stdin and stdout',
  details:
    'A client of MCP starts this command: configure `berth` with the argument `mcp`. The tools use your login, or BERTH_API_KEY, with its scopes. docs/mcp.md lists them.',
  example: 'berth mcp',
  run: serve,
};
