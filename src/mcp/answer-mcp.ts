/** One request to `/mcp`. Its handler ends with it, so nothing is shared with another request. */
import { createMcpHandler } from '@modelcontextprotocol/server';
import { Berth, type BerthOptions } from '../../client/src/berth.ts';
import { mcpServer } from './mcp-server.ts';

export interface McpRequest {
  /** Parsed. */
  readonly body: unknown;
  readonly api: BerthOptions;
  readonly version: string;
  readonly onProblem: (error: Error) => void;
}

export function answerMcp(
  request: Request,
  { body, api, version, onProblem }: McpRequest,
): Promise<Response> {
  // In this process, a repetition meets what the first attempt met: the caller decides about one.
  const berth = new Berth({ ...api, retries: 0 });
  const options = { onerror: onProblem, maxSubscriptions: 0 };
  const handler = createMcpHandler(() => mcpServer(berth, version), options);
  return handler.fetch(request, { parsedBody: body });
}
