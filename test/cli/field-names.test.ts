/** Errors name the options and arguments that were typed, not the fields of the API that these set. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { BerthError } from '../../client/src/berth.ts';
import type { Command } from '../../src/cli/command.ts';
import { COMMANDS } from '../../src/cli/command-table.ts';
import { explain } from '../../src/cli/explain.ts';

interface Operation {
  readonly operationId?: string;
  readonly parameters?: readonly { readonly in: string; readonly name: string }[];
  readonly requestBody?: { readonly content: Record<string, { readonly schema: Schema }> };
}
interface Schema {
  readonly $ref?: string;
  readonly properties?: Record<string, unknown>;
  readonly anyOf?: readonly Schema[];
}
const DOCUMENT = JSON.parse(
  readFileSync(join(import.meta.dirname, '..', '..', 'openapi', 'v1.json'), 'utf8'),
) as {
  readonly paths: Record<string, Record<string, Operation>>;
  readonly components: { readonly schemas: Record<string, Schema> };
};

/** The calls of each command that carry what its user typed; `=name` for a single field. */
const CALLS: Readonly<Record<string, readonly string[]>> = {
  'instance ls': ['=state', '=label'],
  'instance create': ['createInstance'],
  'instance set': ['changeInstance'],
  'instance rename': ['=name'],
  'instance egress': ['=egress.allow'],
  'instance fork': ['forkInstance'],
  'instance restore': ['restoreInstance'],
  'generation name': ['=name'],
  'vm flush': ['changeGeneration'],
  exec: ['createExec'],
  'exec attach': ['=offset'],
  'exec kill': ['signalExec'],
  logs: ['getConsoleLog'],
  metrics: ['getMetricHistory'],
  usage: ['=from', '=to', '=interval'],
  'ssh-key add': ['addSshKey'],
  'instance ssh-keys': ['replaceKeySet'],
  'api-key create': ['createApiKey'],
  'api-key rotate': ['rotateApiKey'],
  'service-account create': ['createServiceAccount'],
  'account rename': ['changeMe'],
  'account email': ['changeEmail'],
  'account confirm': ['confirmEmail'],
  'account password': ['changePassword'],
  'account reset-password': ['requestPasswordReset', 'confirmPasswordReset'],
  register: ['register'],
  login: ['=token', '=totp_code'],
  'mfa verify': ['=code'],
  'org create': ['createOrg'],
  'org rename': ['changeOrg'],
  'org billing-email': ['changeBillingEmail'],
  'member role': ['changeMember'],
  'invitation create': ['createInvitation'],
  'invitation accept': ['acceptInvitation'],
  'webhook create': ['createWebhook'],
  'webhook edit': ['changeWebhook'],
  'webhook rotate-secret': ['rotateWebhookSecret'],
  'webhook replay': ['replayWebhook'],
  'webhook deliveries': ['listWebhookDeliveries'],
  events: ['listEvents'],
  'audit ls': ['listAudit'],
  'port add': ['createPort'],
  'secret set': ['setSecret', '=name'],
};

/** What the command line sets itself, or proves with the password. */
const OWN = new Set(['limit', 'cursor', 'password', 'status', 'response', 'mode']);

const operations = new Map(
  Object.values(DOCUMENT.paths).flatMap((methods) =>
    Object.values(methods).map((each) => [each.operationId ?? '', each] as const),
  ),
);

function propertiesOf(schema: Schema): readonly string[] {
  const named = schema.$ref?.split('/').at(-1);
  if (named !== undefined) return propertiesOf(DOCUMENT.components.schemas[named] ?? {});
  return [...Object.keys(schema.properties ?? {}), ...(schema.anyOf ?? []).flatMap(propertiesOf)];
}

function fieldsOf(operation_id: string): readonly string[] {
  if (operation_id.startsWith('=')) return [operation_id.slice(1)];
  const operation = operations.get(operation_id);
  assert.ok(operation, `there is no ${operation_id}`);
  const query = (operation.parameters ?? []).filter((each) => each.in === 'query').map(({ name }) => name);
  const body = Object.values(operation.requestBody?.content ?? {}).flatMap(({ schema }) =>
    propertiesOf(schema),
  );
  return [...new Set([...query, ...body])].filter((each) => !OWN.has(each));
}

function explained(command: Command, field: string): string {
  const details = [{ field, issue: 'is wrong' }];
  const parts = { status: 400, code: 'INVALID_REQUEST', request_id: null, details } as const;
  return explain(new BerthError({ ...parts, message: `body: ${field} is wrong` }), command, { args: [] });
}

test('an error about any field of a request names what was typed', () => {
  const bare: string[] = [];
  for (const [name, operation_ids] of Object.entries(CALLS)) {
    const command = COMMANDS.find((each) => each.name === name);
    assert.ok(command, `there is no command ${name}`);
    for (const field of operation_ids.flatMap(fieldsOf)) {
      const said: string = explained(command, field);
      if (!/^berth: (--[a-z-]+|[A-Z-]+|the [a-z ]+) is wrong(\n|$)/.test(said))
        bare.push(`${name}: ${field}`);
      // One of several values: `events.0`.
      else assert.equal(explained(command, `${field}.0`).split('\n')[0], said.split('\n')[0]);
    }
  }
  assert.deepEqual(bare, []);
});
