/**
 * The commands on an instance's secrets, which its VM can use but not read. A value comes from a hidden prompt, stdin
 * or a file, never from an argument, because `ps` shows arguments.
 */
import { readFileSync, statSync } from 'node:fs';
import type { Berth, Secret } from '../../../client/src/berth.ts';
import { type Call, type Command, INSTANCE } from '../command.ts';
import { CommandError, EXIT, UsageError } from '../command-error.ts';
import { collect } from '../reading.ts';
import { timeCell } from '../table.ts';

const FILE_MAX_BYTES = 1024 * 1024;

const secretsOf = (berth: Berth, id: string) => collect(berth.list('listSecrets', { path: { id } }));

/** @throws CommandError when it cannot be read */
async function readValue({ options, terminal }: Call, name: string): Promise<string> {
  const path = options.text('from-file');
  if (path !== undefined) return withoutLineBreak(textOf(path));
  if (terminal.interactive) return terminal.askSecret(`Value of ${name} (not shown)`);
  return withoutLineBreak(await terminal.stdin());
}

/** Editors and `echo` end a text with one. */
const withoutLineBreak = (text: string) => text.replace(/\r?\n$/, '');

function textOf(path: string): string {
  try {
    if (statSync(path).size > FILE_MAX_BYTES) throw new CommandError(`${path} has more than 1 MiB`);
    return new TextDecoder('utf-8', { fatal: true }).decode(readFileSync(path));
  } catch (error) {
    if (error instanceof TypeError) throw new CommandError(`${path} is not UTF-8 text`);
    if ((error as NodeJS.ErrnoException).code === 'ENOENT')
      throw new UsageError(`--from-file: there is no file ${path}`);
    throw error;
  }
}

async function set(call: Call): Promise<undefined> {
  const { args, options, session, terminal } = call;
  const berth = session.berth();
  const { id, name: of } = await berth.instances.find(args[0] ?? '');
  const name = args[1] ?? '';
  const before = (await secretsOf(berth, id)).find((each) => each.name === name);
  const hosts = options.list('host') ?? before?.hosts;
  if (hosts === undefined) throw new UsageError('--host is missing: the hosts that get the value');
  const value = await readValue(call, name);
  await berth.call('setSecret', { path: { id, name }, body: { value, hosts: [...hosts] } });
  const done = before?.has_value === true ? 'Replaced' : 'Set';
  terminal.done(
    `${done} ${name} of ${of}, for ${hosts.join(', ')}. In new sessions, BERTH_SECRET_${name} stands for it.`,
    { name, hosts },
    name,
  );
}

async function list({ session, args, terminal }: Call): Promise<undefined> {
  const berth = session.berth();
  const { id, name } = await berth.instances.find(args[0] ?? '');
  terminal.list(await secretsOf(berth, id), {
    headings: ['NAME', 'HOSTS', 'VALUE', 'UPDATED'],
    row: (each: Secret) => [
      each.name,
      each.hosts.join(', '),
      { text: each.has_value ? 'set' : 'none', value: each.has_value },
      timeCell(each.updated_at),
    ],
    quiet: (each) => each.name,
    empty: `${name} has no secrets. Set one: berth secret set ${name} SECRET --host HOST`,
  });
}

async function remove({ session, args, terminal }: Call): Promise<undefined> {
  const berth = session.berth();
  const { id, name: of } = await berth.instances.find(args[0] ?? '');
  const name = args[1] ?? '';
  const names = (await secretsOf(berth, id)).map((each) => each.name);
  if (!names.includes(name)) {
    const next = `berth secret ls ${of}`;
    throw new CommandError(`${of} has no secret ${name}`, { next, exit_code: EXIT.not_found });
  }
  await berth.call('deleteSecret', { path: { id, name } });
  terminal.done(`Deleted ${name} of ${of}. New sessions do not have it.`, { deleted: name }, name);
}

export const SECRET_COMMANDS: readonly Command[] = [
  {
    name: 'secret set',
    args: ['NAME', 'SECRET'],
    fields: { name: 'SECRET', value: 'VALUE' },
    names_instances: true,
    summary: 'let a VM use a secret that it cannot read, in HTTPS requests to some hosts',
    details:
      'In the guest, BERTH_SECRET_<SECRET> holds a placeholder, which the host replaces in headers of requests to those hosts. The value is asked for without echo; without a terminal it is read from stdin. A line break at its end is left out. docs/secrets.md says what this does not protect against.',
    example: 'berth secret set web OPENAI_API_KEY --host api.openai.com',
    options: {
      host: {
        type: 'string',
        value: 'HOST',
        multiple: true,
        field: 'hosts',
        help: 'a host that gets the value, such as api.example.com or *.example.com; repeatable; default: as before',
      },
      'from-file': { type: 'string', value: 'FILE', help: 'read the value from this file' },
    },
    run: set,
  },
  {
    name: 'secret ls',
    ...INSTANCE,
    summary: "list an instance's secrets, without values",
    example: 'berth secret ls web',
    run: list,
  },
  {
    name: 'secret rm',
    args: ['NAME', 'SECRET'],
    names_instances: true,
    summary: 'delete a secret',
    example: 'berth secret rm web OPENAI_API_KEY',
    run: remove,
  },
];
