/** A duration as the command line takes it, or nothing for never. */
import { DURATION_EXAMPLES, durationText, readDuration } from '../../../client/src/words.ts';
import { Field } from '../ui/field.tsx';
import { FieldError } from '../ui/validity.ts';

export interface DurationRange {
  readonly name: string;
  readonly min_s: number;
  readonly max_s: number;
}

interface Props {
  readonly range: DurationRange;
  readonly label: string;
  readonly hint: string;
  readonly seconds: number | null;
  readonly issue: string | undefined;
}

export function DurationField({ range, label, hint, seconds, issue }: Props) {
  return (
    <Field
      label={label}
      name={range.name}
      defaultValue={seconds === null ? '' : durationText(seconds)}
      placeholder="never"
      hint={hint}
      issue={issue}
      maxLength={20}
      autocomplete="off"
      spellcheck={false}
    />
  );
}

/** @returns seconds, or null for never @throws FieldError */
export function durationOf(form: FormData, { name, min_s, max_s }: DurationRange): number | null {
  const text = String(form.get(name) ?? '').trim();
  if (['', 'off', 'never'].includes(text)) return null;
  const seconds = readDuration(text);
  if (seconds === null) throw new FieldError(name, `Enter a duration such as ${DURATION_EXAMPLES}.`);
  if (seconds < min_s || seconds > max_s)
    throw new FieldError(name, `Enter ${durationText(min_s)} to ${durationText(max_s)}.`);
  return seconds;
}
