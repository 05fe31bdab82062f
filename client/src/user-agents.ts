/** A short name for a user agent. Most browsers also name others, so the order matters. */
const PROGRAMS = [
  [/^berth-cli\b/, 'berth command line'],
  [/^curl\//, 'curl'],
  [/\bEdgA?\//, 'Edge'],
  [/\b(?:OPR|Opera)\//, 'Opera'],
  [/\b(?:Firefox|FxiOS)\//, 'Firefox'],
  [/(?:Chrome|Chromium|CriOS)\//, 'Chrome'],
  [/\bSafari\//, 'Safari'],
] as const;
const SYSTEMS = [
  [/Android/, 'Android'],
  [/iPhone/, 'iPhone'],
  [/iPad/, 'iPad'],
  [/CrOS/, 'ChromeOS'],
  [/Mac OS X|darwin/, 'macOS'],
  [/Windows/, 'Windows'],
  [/Linux|linux/, 'Linux'],
] as const;
const MAX_LENGTH = 40;

function firstOf(names: readonly (readonly [RegExp, string])[], text: string): string | undefined {
  return names.find(([pattern]) => pattern.test(text))?.[1];
}

/** `Firefox on Linux`; the beginning of the text if the program is not known. */
export function programName(user_agent: string): string {
  const program = firstOf(PROGRAMS, user_agent);
  if (program === undefined) return user_agent.slice(0, MAX_LENGTH).toWellFormed() || 'unknown program';
  const system = firstOf(SYSTEMS, user_agent);
  return system === undefined ? program : `${program} on ${system}`;
}
