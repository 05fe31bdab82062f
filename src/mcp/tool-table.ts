/** Every tool, in the order in which clients show them. The one table of both transports; docs/mcp.md lists it. */
import { EXEC_TOOLS } from './exec-tools.ts';
import { FILE_TOOLS } from './file-tools.ts';
import { GENERATION_TOOLS } from './generation-tools.ts';
import { INSTANCE_TOOLS } from './instance-tools.ts';
import { PORT_TOOLS } from './port-tools.ts';
import type { Tool } from './tool.ts';

export const TOOLS: readonly Tool[] = [
  ...INSTANCE_TOOLS,
  ...EXEC_TOOLS,
  ...FILE_TOOLS,
  ...GENERATION_TOOLS,
  ...PORT_TOOLS,
];
