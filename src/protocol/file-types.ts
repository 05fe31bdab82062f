/** Files of a guest: what a control plane asks of them. The answer is a stream of the frames in `file-stream.ts`. */
import { Type } from 'typebox';
import { anyText, closed, InstanceId, matching, nullable, VmId, whole } from './schemas.ts';

/** Of a path, as Linux has it. */
export const PATH_BYTES = 4_095;
/** Of one file name. */
const NAME_BYTES = 255;
/** Requests for files that a VM serves at once. */
export const FILE_CALLS_MAX = 32;
/** Percent-encoded bytes. */
const Path = matching('^/', 3 * PATH_BYTES);
const Name = matching('^[^/]*$', 3 * NAME_BYTES);
const Mode = nullable(matching('^[0-7]{3,4}$', 4));
const User = nullable(anyText(256));

export const FileCall = closed({
  kind: Type.Literal('file'),
  instance_id: InstanceId,
  vm_id: VmId,
  action: Type.Union([
    closed({ verb: Type.Literal('read'), path: Path }),
    closed({ verb: Type.Literal('write'), path: Path, mode: Mode, user: User }),
    /** Up to `count` entries after the one with this name. */
    closed({ verb: Type.Literal('list'), path: Path, after: nullable(Name), count: whole(1, 1_000) }),
    closed({ verb: Type.Literal('remove'), path: Path, recursive: Type.Boolean() }),
    closed({ verb: Type.Literal('move'), path: Path, to: Path }),
    closed({ verb: Type.Literal('directory'), path: Path, mode: Mode, user: User }),
  ]),
});
