/** The curl command of an operation, for a shell. Pure. */
import { JSON_TYPE, type OperationObject } from '../../http/openapi/types.ts';

export interface Called {
  readonly origin: string;
  readonly method: string;
  readonly path: string;
  readonly operation: OperationObject;
}

/** The variables that hold the caller's credentials. */
export const VARIABLES = { api_key: 'BERTH_API_KEY', session: 'BERTH_SESSION', sudo: 'BERTH_SUDO' } as const;

/** One word of a POSIX shell. */
function quoted(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

/** `/v1/instances/{id}` → `/v1/instances/$ID`; the names are those of the document. */
function withVariables(path: string): string {
  return path.replaceAll(/\{([a-z_]+)\}/g, (_, name: string) => `$${name.toUpperCase()}`);
}

export function curlExample({ origin, method, path, operation }: Called): string {
  const { 'x-access': access, requestBody, responses } = operation;
  const token = access.kind === 'session' ? VARIABLES.session : VARIABLES.api_key;
  const example = requestBody?.content[JSON_TYPE]?.example;
  const is_empty = example === undefined || Object.keys(example as object).length === 0;
  const streams = Object.values(responses).some(
    (response) => 'content' in response && response.content?.['text/event-stream'] !== undefined,
  );
  const verb = method === 'get' ? '' : `-X ${method.toUpperCase()} `;
  return [
    `curl ${streams ? '-N ' : ''}${verb}"${origin}${withVariables(path)}"`,
    ...(access.kind === 'public' ? [] : [`-H "Authorization: Bearer $${token}"`]),
    ...(access.sudo ? [`-b "__Secure-berth_sudo=$${VARIABLES.sudo}"`] : []),
    ...(is_empty
      ? []
      : [`-H 'Content-Type: application/json'`, `-d ${quoted(JSON.stringify(example, null, 2))}`]),
  ].join(' \\\n  ');
}
