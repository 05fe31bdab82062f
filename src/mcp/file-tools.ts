/** The MCP tools that list, read and write files of a guest. */
import { isUtf8 } from 'node:buffer';
import { Type } from 'typebox';
import { type Berth, BerthError, type File } from '../../client/src/berth.ts';
import { untrustedText } from '../shared/untrusted-text.ts';
import {
  CURSOR,
  DESTROYS,
  INSTANCE,
  incompleteEnd,
  LIMIT,
  READS,
  type Tool,
  type ToolAnswer,
  tool,
  toolInput,
} from './tool.ts';

interface Wanted {
  /** Of the instance. */
  readonly id: string;
  readonly path: string;
  readonly offset: number;
  readonly length: number;
}

export interface Part {
  readonly bytes: Buffer;
  /** Of the file; null: not known, and there is more. */
  readonly size: number | null;
}

async function readPart(
  berth: Berth,
  { id, path, offset, length }: Wanted,
  signal: AbortSignal,
): Promise<Part> {
  let response: Response;
  try {
    response = await berth.files(id).read(path, { start: offset, end: offset + length, signal });
  } catch (error) {
    const is_empty = error instanceof BerthError && error.code === 'RANGE_NOT_SATISFIABLE' && offset === 0;
    if (!is_empty) throw error;
    return { bytes: Buffer.alloc(0), size: 0 };
  }
  const [, size] = /\/(\d+)$/.exec(response.headers.get('content-range') ?? '') ?? [];
  if (size !== undefined) return { bytes: await firstBytes(response, 0, length), size: Number(size) };
  // A file whose size the guest does not tell, as those of /proc, comes from its beginning.
  const bytes = await firstBytes(response, offset, length + 1);
  if (bytes.length > length) return { bytes: bytes.subarray(0, length), size: null };
  return { bytes, size: offset + bytes.length };
}

/** `length` bytes of the body after `skip`, or what there is. The rest is not read. */
async function firstBytes({ body }: Response, skip: number, length: number): Promise<Buffer> {
  const pieces: Uint8Array[] = [];
  let to_skip = skip;
  let missing = length;
  // Leaving the loop cancels the body.
  for await (const chunk of body ?? []) {
    const piece = chunk.subarray(to_skip, to_skip + missing);
    to_skip = Math.max(0, to_skip - chunk.length);
    missing -= piece.length;
    pieces.push(piece);
    if (missing === 0) break;
  }
  return Buffer.concat(pieces);
}

/** About 5,000 tokens of text. */
const PART_BYTES = 20_000;
/** In the characters of a request, which has at most a mebibyte. */
const CONTENT_CHARACTERS = 512 * 1024;

const PATH = Type.String({ minLength: 1, maxLength: 4096, description: 'Absolute path in the guest' });

const lineOf = ({ type, size, mode, user, mtime, name }: File): string =>
  [type, size ?? '-', mode, user, mtime, untrustedText(name)].join('  ');

const LIST = tool({
  name: 'list_files',
  title: 'List a folder',
  description:
    'Lists the entries of a folder in the guest, sorted by name: type, bytes, mode, owner, time of the last change, name. The VM must run.',
  input: toolInput({ instance: INSTANCE, path: PATH, limit: LIMIT, cursor: CURSOR }),
  hints: READS,
  needs: 'vm:write',
  run: async ({ berth, args: { instance, ...query }, signal }) => {
    const { id } = await berth.instances.find(instance, { signal });
    const { data, next_cursor } = await berth.call('listFiles', { path: { id }, query }, { signal });
    if (data.length === 0) return { text: `${query.path} is empty.` };
    const more = next_cursor === null ? '' : ` More: the same with cursor ${next_cursor}`;
    return { text: `${data.length} entries of ${query.path}.${more}`, of_guest: data.map(lineOf).join('\n') };
  },
});

/** As text where it is text. A part that begins within a character is none. */
function partText(path: string, { bytes, size }: Part, offset: number): ToolAnswer {
  const is_end = size !== null && offset + bytes.length >= size;
  const whole = is_end ? bytes : bytes.subarray(0, bytes.length - incompleteEnd(bytes));
  const is_text = isUtf8(whole) && !whole.includes(0);
  const shown = is_text ? whole : bytes;
  const next = offset + shown.length;
  const range = is_end && offset === 0 ? `${next} bytes` : `bytes ${offset} to ${next} of ${size ?? 'more'}`;
  const form = is_text ? '' : ', no text, so as base64';
  const more = is_end ? '' : ` More: offset ${next}.`;
  return {
    text: `${path}: ${range}${form}.${more}`,
    ...(shown.length === 0 ? {} : { of_guest: shown.toString(is_text ? 'utf8' : 'base64') }),
  };
}

const READ = tool({
  name: 'read_file',
  title: 'Read a file',
  description: `Returns up to ${PART_BYTES} bytes of a file in the guest, from an offset on, unchanged: as text, or as base64 where it is no text. The VM must run.`,
  input: toolInput({
    instance: INSTANCE,
    path: PATH,
    offset: Type.Optional(
      Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER, default: 0, description: 'In bytes' }),
    ),
  }),
  hints: READS,
  needs: 'vm:write',
  run: async ({ berth, args: { instance, path, offset = 0 }, signal }) => {
    const { id } = await berth.instances.find(instance, { signal });
    const part = await readPart(berth, { id, path, offset, length: PART_BYTES }, signal);
    return partText(path, part, offset);
  },
});

const WRITE = tool({
  name: 'write_file',
  title: 'Write a file',
  description: `Writes a whole file in the guest, at most ${CONTENT_CHARACTERS / 1024} KiB, and missing folders. It replaces a file that is there in one step, and keeps its mode and owner. Lost: the content of a replaced file, unless overwrite is false or a generation has it. The VM must run.`,
  input: toolInput({
    instance: INSTANCE,
    path: PATH,
    content: Type.String({ maxLength: CONTENT_CHARACTERS }),
    encoding: Type.Optional(Type.Enum(['utf8', 'base64'], { default: 'utf8' })),
    mode: Type.Optional(Type.String({ pattern: '^[0-7]{3,4}$', description: 'Octal; new files: 0644' })),
    user: Type.Optional(
      Type.String({ minLength: 1, maxLength: 64, description: 'Owner of the file; new files: root' }),
    ),
    overwrite: Type.Optional(
      Type.Boolean({ default: true, description: 'false: fail if the file is there' }),
    ),
  }),
  hints: DESTROYS,
  needs: 'vm:write',
  run: async ({ berth, args, signal }) => {
    const { instance, content, encoding = 'utf8', overwrite = true, path, ...owner } = args;
    const { id } = await berth.instances.find(instance, { signal });
    const bytes = Buffer.from(content, encoding);
    const options = { ...owner, create: !overwrite, signal };
    const { size, mode, user } = await berth.files(id).write(path, bytes, options);
    return { text: `Wrote ${size ?? bytes.length} bytes to ${path} (${mode}, ${user}).` };
  },
});

export const FILE_TOOLS: readonly Tool[] = [LIST, READ, WRITE];
