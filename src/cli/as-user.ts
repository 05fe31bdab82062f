/** Commands on routes that take no API key: they ask for the password, unless `berth sudo` was run before. */
import type { Berth } from '../../client/src/berth.ts';
import type { Call, Options } from './command.ts';
import type { Profile } from './profiles.ts';
import type { Proof } from './session.ts';

export function proofOf(options: Options): Proof {
  return { password_stdin: options.flag('password-stdin'), totp: options.text('totp') };
}

/** Runs calls in a session of the user, with a sudo grant. @throws CommandError without a login */
export function asUser<T>(
  { session, options }: Pick<Call, 'session' | 'options'>,
  work: (berth: Berth, profile: Profile) => Promise<T>,
): Promise<T> {
  const profile = session.requireProfile();
  return session.withSudo(proofOf(options), (berth) => work(berth, profile));
}
