/**
 * Defines the commands that verify, export, import and free disks, and make and restore backups. They run on the
 * server. Their implementation is in `../server/`, which is loaded only when such a command runs.
 */
import type { Call, Command } from '../command.ts';
import { CommandError, EXIT, UsageError } from '../command-error.ts';
import { durationOption } from '../values.ts';

const JSON_OPTION = { json: { type: 'boolean', help: 'the result, as JSON' } } as const;
const GENERATION = {
  generation: { type: 'string', value: 'N', help: 'this generation; default: the last one' },
} as const;
/** A host that reads by an older head asks for the new one in that time. */
const MIN_REMOVAL_SECONDS = 600;
const FORMATS = ['raw', 'qcow2'] as const;

function generationOf({ options }: Call): number | null {
  const text = options.text('generation');
  if (text === undefined) return null;
  if (!/^[1-9]\d{0,8}$/.test(text)) throw new UsageError(`--generation takes a number, not ${text}`);
  return Number(text);
}

const formatOf = ({ options }: Call) => FORMATS.find((each) => each === options.text('format')) ?? null;

/** Ctrl-C fails the work under way with some error: report an interruption instead. */
async function heeding<T>({ signal }: Call, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (signal.aborted) throw new CommandError('interrupted', { exit_code: EXIT.interrupted });
    throw error;
  }
}

async function verify(call: Call): Promise<number> {
  const { args, options, terminal, signal } = call;
  const [instance] = args;
  const all = options.flag('all');
  const generation = generationOf(call);
  if ((instance === undefined) !== all) throw new UsageError('give an instance or --all, and not both');
  if (all && generation !== null) throw new UsageError('--generation needs one instance');
  const { verifyDisks } = await import('../server/disks.ts');
  return heeding(call, () => verifyDisks({ instance: instance ?? null, generation, terminal, signal }));
}

async function exportTo(call: Call): Promise<undefined> {
  const [instance = '', file = ''] = call.args;
  const { terminal, signal } = call;
  const what = {
    instance,
    file,
    terminal,
    signal,
    generation: generationOf(call),
    format: formatOf(call) ?? 'raw',
  };
  const { exportDisk } = await import('../server/disk-files.ts');
  await heeding(call, () => exportDisk(what));
}

async function importFrom(call: Call): Promise<undefined> {
  const [instance = '', file = ''] = call.args;
  const { terminal, signal, options } = call;
  const what = { instance, file, terminal, signal, format: formatOf(call), grow: options.flag('grow') };
  const { importFile } = await import('../server/disk-files.ts');
  await heeding(call, () => importFile(what));
}

async function free(call: Call): Promise<undefined> {
  const seconds = durationOption('older-than', call.options.text('older-than')) ?? MIN_REMOVAL_SECONDS;
  if (seconds < MIN_REMOVAL_SECONDS)
    throw new UsageError(
      '--older-than takes 10m or more: hosts may still read what was replaced a moment ago',
    );
  const { freeObjects } = await import('../server/disks.ts');
  await heeding(call, () => freeObjects(call.terminal, seconds));
}

async function backUp(call: Call): Promise<number> {
  const { args, terminal, signal, options } = call;
  const [folder = ''] = args;
  const request = { folder, terminal, signal, with_objects: options.flag('with-objects') };
  const { backup } = await import('../server/backups.ts');
  return heeding(call, () => backup({ ...request, with_key: !options.flag('without-key') }));
}

async function restoreFrom(call: Call): Promise<number> {
  const { args, terminal, signal } = call;
  const [folder = ''] = args;
  const { restore } = await import('../server/backups.ts');
  return heeding(call, () => restore({ folder, terminal, signal }));
}

export const DATA_COMMANDS: readonly Command[] = [
  {
    name: 'disk verify',
    args: ['[INSTANCE]'],
    summary: 'read every object of a generation, and list the damaged and missing ones (exit code 8)',
    example: 'berth disk verify web',
    options: {
      ...GENERATION,
      all: { type: 'boolean', help: 'the last generation of every instance' },
      ...JSON_OPTION,
    },
    run: verify,
  },
  {
    name: 'disk export',
    args: ['INSTANCE', 'FILE'],
    summary: 'export a generation as a complete disk into a file',
    example: 'berth disk export web web.qcow2 --format qcow2',
    options: {
      ...GENERATION,
      format: {
        type: 'string',
        value: 'FORMAT',
        choices: FORMATS,
        help: 'raw (sparse) or qcow2; default: raw',
      },
      ...JSON_OPTION,
    },
    run: exportTo,
  },
  {
    name: 'disk import',
    args: ['INSTANCE', 'FILE'],
    summary: 'make a file the disk of a stopped instance, as a new generation',
    example: 'berth create copy && berth disk import copy web.qcow2',
    options: {
      format: {
        type: 'string',
        value: 'FORMAT',
        choices: FORMATS,
        help: 'raw or qcow2; default: detected from the file',
      },
      grow: { type: 'boolean', help: 'enlarge the disk if the file is larger, within the quota' },
      ...JSON_OPTION,
    },
    run: importFrom,
  },
  {
    name: 'disk free',
    summary: 'remove objects that nothing needs any more, before BERTH_REMOVAL_DELAY_HOURS is over',
    details:
      'A database that is set back to a time before their last use then lacks them. Wait until no backup, export or verification runs.',
    example: 'berth disk free --older-than 1h',
    options: {
      'older-than': {
        type: 'string',
        value: 'DURATION',
        help: 'only those without use for so long; default and minimum: 10m',
      },
      ...JSON_OPTION,
    },
    run: free,
  },
  {
    name: 'backup',
    args: ['FOLDER'],
    summary: 'back up the whole machine into an empty folder, while it runs',
    details: 'A backup has the database, the objects of the disks, the base images and the secret key.',
    example: 'berth backup /mnt/backups/2026-11-21',
    options: {
      'with-objects': {
        type: 'boolean',
        help: 'include the objects of a bucket; those of a folder always are',
      },
      'without-key': { type: 'boolean', help: 'leave out the secret key; keep it elsewhere' },
      ...JSON_OPTION,
    },
    run: backUp,
  },
  {
    name: 'restore-backup',
    args: ['FOLDER'],
    summary: 'restore a backup into an empty data folder, before npm start',
    example: 'BERTH_DATA_DIR=/var/lib/berth berth restore-backup /mnt/backups/2026-11-21',
    options: JSON_OPTION,
    run: restoreFrom,
  },
];
