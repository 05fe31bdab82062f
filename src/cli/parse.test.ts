import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Command } from './command.ts';
import { UsageError } from './command-error.ts';
import { COMMANDS, findCommand } from './command-table.ts';
import { parse } from './parse.ts';

function commandOf(name: string): Command {
  const found = findCommand(name.split(' '));
  assert.ok(found, name);
  return found.command;
}

/** `berth exec web uname -a`, as its arguments and the words for the other program. */
function split(line: string) {
  const [name = '', ...words] = line.split(' ');
  const { args, rest, options } = parse(commandOf(name), words);
  return { args: args.join(' '), rest: rest.join(' '), options };
}

const refused = (line: string, message: RegExp) => {
  const [name = '', ...words] = line.split(' ');
  assert.throws(
    () => parse(commandOf(name), words),
    (error: Error) => {
      assert.ok(error instanceof UsageError);
      assert.match(error.message, message);
      return true;
    },
  );
};

test('the first word after exec NAME begins the command, whose options are its own', () => {
  for (const line of ['exec web uname -a', 'exec web -- uname -a', 'exec -n web uname -a']) {
    const { args, rest } = split(line);
    assert.deepEqual([args, rest], ['web', 'uname -a'], line);
  }
  const { rest, options } = split('exec web --timeout 5m --json ls --json -n -- x');
  assert.deepEqual([rest, options.text('timeout')], ['ls --json -n -- x', '5m']);
  assert.deepEqual([options.flag('json'), options.flag('no-stdin')], [true, false]);
  assert.equal(split('exec web').rest, '');
  refused('exec web -z ls', /^there is no option -z/);
});

test("ssh's own options are passed to ssh, before and after NAME, with their values", () => {
  assert.equal(split('ssh web -L 8080:localhost:80').rest, '-L 8080:localhost:80');
  assert.equal(split('ssh web -NL 8080:localhost:80 -v').rest, '-NL 8080:localhost:80 -v');
  const { args, rest, options } = split('ssh -A -p22 -J jump web --no-start -i key -t top -q -i x');
  assert.deepEqual([args, rest], ['web', '-A -p22 -J jump -t top -q -i x']);
  assert.deepEqual([options.flag('no-start'), options.text('identity')], [true, 'key']);
  assert.equal(split('ssh web -- ls --help').rest, 'ls --help');
  assert.equal(split('up web -L 1:b:2 true').rest, '-L 1:b:2 true');
  assert.equal(split('ssh -h').options.flag('help'), true);
});

test('an extra argument is refused by name, by every command', () => {
  for (const command of COMMANDS) {
    const { args = [], rest } = command;
    if (rest !== undefined || args.some((each) => each.includes('…'))) continue;
    const words = [...args.map(() => 'x'), 'surplus'];
    assert.throws(() => parse(command, words), /^UsageError: unexpected argument “surplus”$/, command.name);
  }
  refused('ls web', /^unexpected argument “web”$/);
  refused('create web db', /^unexpected argument “db”$/);
  refused('create', /^NAME is missing$/);
});

test('an unknown option is refused with the nearest one', () => {
  refused('create web --memroy 1g', /^there is no option --memroy\. Did you mean --memory\?$/);
  refused('create web --memory', /^--memory takes a value: --memory SIZE$/);
  refused('create web --start=yes', /^--start takes no value$/);
  refused('ls --format xml', /^--format takes table, csv or json, not xml$/);
  refused('ls --state runing', /^--state takes .*, not runing\. Did you mean running\?$/);
});
