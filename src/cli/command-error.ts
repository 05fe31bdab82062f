/** What went wrong with a command, for the person who typed it. */
export class CommandError extends Error {
  override name = 'CommandError';
}
