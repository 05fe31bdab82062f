/**
 * Makes the OpenAPI document of the internal API from `routes.ts` and its schemas. Run as a program, it writes
 * `openapi/agent-v<version>.json`, which is kept in Git.
 */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import type { TSchema } from 'typebox';
import { assert } from '../shared/assert.ts';
import { CONSOLE_PROTOCOL } from './host-calls.ts';
import { AGENT_PROTOCOL, PROTOCOL_HEADER, ProtocolRefusal } from './protocol.ts';
import { type AgentRoute, ROUTES } from './routes.ts';

export const AGENT_DOCUMENT_PATH = join(
  import.meta.dirname,
  ...['..', '..', 'openapi', `agent-v${AGENT_PROTOCOL}.json`],
);

const HEADER = {
  name: PROTOCOL_HEADER,
  in: 'header',
  required: true,
  description: 'The version of the agent protocol that the caller speaks. An answer has the control plane’s.',
  schema: { type: 'integer', minimum: 1, maximum: 999_999_999 },
};
/** Upgrades: what follows are the bytes of a stream, so they are no calls of the table. */
const STREAMS = {
  '/internal/v1/calls/{id}/stream': 'The stream that answers a call for a console or a way to SSH.',
  '/internal/v1/peers/streams/{host_id}/{id}':
    'Such a stream, passed on by the control plane that the host has opened it to.',
  '/internal/v1/tunnels/{id}':
    'A way to the SSH server of a VM on another host; on this machine’s socket alone.',
};

type Json = { [key: string]: unknown };

/** Schemas that have a name, each once, and references to them. */
class Components {
  readonly schemas: Record<string, Json> = {};

  refer(schema: TSchema): Json {
    return this.#hoist(JSON.parse(JSON.stringify(schema)) as Json);
  }

  #hoist(schema: Json): Json {
    const { title, ...rest } = schema;
    const hoisted = Object.fromEntries(
      Object.entries(rest).map(([key, value]) => [key, this.#within(value)]),
    );
    if (typeof title !== 'string') return hoisted;
    const known = this.schemas[title];
    assert(known === undefined || isDeepStrictEqual(known, hoisted), `two schemas are called ${title}`);
    this.schemas[title] = hoisted;
    return { $ref: `#/components/schemas/${title}` };
  }

  #within(value: unknown): unknown {
    if (Array.isArray(value)) return value.map((each) => this.#within(each));
    return typeof value === 'object' && value !== null ? this.#hoist(value as Json) : value;
  }
}

export function agentDocument(): string {
  const components = new Components();
  const refusals = {
    '400': { description: 'The body is not as its schema has it.' },
    '401': { description: 'The token is no host’s.' },
    '426': answer(components, ProtocolRefusal, 'This version of the protocol is not spoken.'),
  };
  const paths: Record<string, Json> = {};
  for (const [operationId, route] of Object.entries(ROUTES) as [string, AgentRoute][]) {
    const content = { 'application/json': { schema: components.refer(route.request) } };
    paths[route.path] = {
      post: {
        operationId,
        summary: route.summary,
        tags: [route.caller],
        parameters: [HEADER],
        requestBody: { required: true, content },
        responses: { '200': answer(components, route.response, 'The answer.'), ...refusals },
      },
    };
  }
  for (const [path, summary] of Object.entries(STREAMS)) {
    const ids = [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => ({
      ...{ name, in: 'path', required: true, schema: { type: 'string', maxLength: 36 } },
    }));
    const responses = {
      '101': { description: `A stream, by the upgrade to ${CONSOLE_PROTOCOL}.` },
      ...refusals,
    };
    paths[path] = { get: { summary, parameters: [...ids, HEADER], responses } };
  }
  const schemas = Object.fromEntries(Object.entries(components.schemas).sort(([a], [b]) => (a < b ? -1 : 1)));
  const document = {
    openapi: '3.1.0',
    info: {
      title: 'Berth: control plane and hosts',
      version: String(AGENT_PROTOCOL),
      description:
        'What hosts and the ingress call. It is no API for users, and is never on the public listener.',
    },
    tags: [
      { name: 'host', description: 'Called by the agent of a host, which speaks for its own VMs alone.' },
      { name: 'peer', description: 'Called by other control planes, over TLS, with a token of their own.' },
      { name: 'ingress', description: 'Called by the ingress, on a unix socket of the same machine.' },
    ],
    security: [{ host: [] }],
    paths,
    components: { securitySchemes: { host: { type: 'http', scheme: 'bearer' } }, schemas },
  };
  return `${JSON.stringify(document, null, 2)}\n`;
}

function answer(components: Components, schema: TSchema, description: string): Json {
  return { description, content: { 'application/json': { schema: components.refer(schema) } } };
}

if (import.meta.main) await writeFile(AGENT_DOCUMENT_PATH, agentDocument());
