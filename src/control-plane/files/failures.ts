/** What the guest says where it could not do what was asked, as an error for the caller. */
import { AppError, invalid } from '../../shared/errors.ts';
import { untrustedText } from '../../shared/untrusted-text.ts';

/** By the code of file-tasks.pl, or the guest's errno. */
const FAILURES: Readonly<Record<string, () => AppError>> = {
  2: () => new AppError('NOT_FOUND', { message: 'There is no such file or folder in the guest.' }),
  16: () => conflict('It is in use, such as by a mount.'),
  17: () => conflict('Something else has that name already.'),
  18: () => conflict('The guest cannot move it to another file system. Copy it, then delete it.'),
  20: () => conflict('A part of the path is not a folder.'),
  21: () => conflict('It is a folder.'),
  22: () => conflict('The guest cannot move a folder into itself.'),
  28: full,
  30: () => conflict("The guest's file system is read-only."),
  36: () => invalid('path', 'has a name of more than 255 bytes'),
  39: () => conflict('The folder is not empty. To delete it with all that it holds, send recursive=true.'),
  40: () => conflict('The path has too many links.'),
  122: full,
  changed: () => new AppError('PRECONDITION_FAILED', { message: 'The file has changed meanwhile.' }),
  link: () =>
    conflict(
      "The path has a link that is not root's, in a folder that others may write to. Name the file itself.",
    ),
  links: () => conflict('The path has too many links.'),
  no_name: () => invalid('path', 'must end with the name of a file or folder'),
  not_regular: () => conflict('It is not a regular file.'),
  shrunk: () => conflict('The file became shorter while it was read.'),
  user: () => invalid('user', 'is not a user of the guest'),
};

/** `payload`: code, NUL, text. */
export function failureOf(payload: Buffer): AppError {
  const [code = '', text = ''] = payload.toString('utf8', 0, 2_000).split('\0');
  const known = Object.hasOwn(FAILURES, code) ? FAILURES[code] : undefined;
  if (known) return known();
  const why = untrustedText(text);
  if (/^\d{1,4}$/.test(code)) return conflict(`The guest refused it: ${why}.`);
  return new AppError('UNAVAILABLE', { message: 'The guest could not do it.', internal: why });
}

function conflict(message: string): AppError {
  return new AppError('CONFLICT', { message });
}

function full(): AppError {
  return new AppError('DISK_FULL', {
    message: "The guest's file system has no room for it. What was there before is unchanged.",
  });
}
