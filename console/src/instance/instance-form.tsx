/**
 * The fields of an instance's settings, and the functions that read them. The dialog that creates an instance and the
 * Settings tab share them.
 */
import type { Instance } from '../../../client/src/berth.ts';
import { DURATION_EXAMPLES, durationText, readDuration } from '../../../client/src/words.ts';
import { Checkbox, Field, Select } from '../ui/field.tsx';
import { FieldError } from '../ui/validity.ts';
import { NEW_DEFAULTS } from './as-commands.ts';

export function NewNameField(props: { readonly placeholder: string }) {
  return (
    <Field
      {...props}
      label="Name"
      name="name"
      required
      autofocus
      autocomplete="off"
      spellcheck={false}
      maxLength={63}
      pattern="[a-z0-9]([a-z0-9\-]*[a-z0-9])?"
      title="Use lowercase letters, digits and hyphens"
    />
  );
}

/** The API's bounds. */
const AUTO_FLUSH: DurationRange = { name: 'auto_flush_seconds', min_s: 5, max_s: 86_400 };
const IDLE_STOP: DurationRange = { name: 'idle_timeout_seconds', min_s: 60, max_s: 2_592_000 };

type RestartPolicy = Instance['restart'];

export const RESTART_WORDS: Readonly<Record<RestartPolicy, string>> = {
  never: 'never',
  on_failure: 'on failure',
};

/** The fields of both forms. A time of `null` means never. */
interface Settings {
  readonly idle_timeout_seconds: number | null;
  readonly auto_flush_seconds: number | null;
  readonly wake_on_connect: boolean;
  readonly restart: RestartPolicy;
}

export function SettingsFields({ of = NEW_DEFAULTS }: { readonly of?: Settings }) {
  return (
    <>
      <div class="columns">
        <DurationField
          label="Automatic flush every"
          range={AUTO_FLUSH}
          seconds={of.auto_flush_seconds}
          hint="Saves a running VM this often, such as 30s or 10m. Empty: only when you flush, stop or suspend it"
        />
        <DurationField
          label="Idle stop after"
          range={IDLE_STOP}
          seconds={of.idle_timeout_seconds}
          hint="Stops the VM, with a flush, after this time without use, such as 30m or 24h. Empty: never"
        />
      </div>
      <Checkbox
        label="Wake on connect"
        name="wake_on_connect"
        defaultChecked={of.wake_on_connect}
        hint="An SSH connection, or a request to an HTTP port, starts or resumes the VM, and waits until it runs"
      />
      <Select
        label="Restart"
        name="restart"
        defaultValue={of.restart}
        hint="On failure: a VM that failed, or whose host was lost, starts again, at most 5 times in 10 minutes"
      >
        {Object.entries(RESTART_WORDS).map(([policy, words]) => (
          <option key={policy} value={policy}>
            {words}
          </option>
        ))}
      </Select>
    </>
  );
}

/** @throws FieldError */
export function readSettings(form: FormData): Settings {
  return {
    idle_timeout_seconds: durationOf(form, IDLE_STOP),
    auto_flush_seconds: durationOf(form, AUTO_FLUSH),
    wake_on_connect: form.get('wake_on_connect') !== null,
    restart: form.get('restart') === 'on_failure' ? 'on_failure' : 'never',
  };
}

export type Size = Pick<Instance, 'cpus' | 'memory_mib' | 'disk_gib'>;

export function SizeFields({ of }: { readonly of?: Size }) {
  const common = { type: 'number', required: true } as const;
  const { cpus, memory_mib, disk_gib } = of ?? NEW_DEFAULTS;
  return (
    <div class="columns three">
      <Field {...common} label="CPUs" name="cpus" min={1} max={16} defaultValue={cpus} />
      <Field
        {...common}
        label="Memory, MiB"
        name="memory_mib"
        min={128}
        max={65_536}
        defaultValue={memory_mib}
      />
      <Field
        {...common}
        label="Disk, GiB"
        name="disk_gib"
        min={of === undefined ? 1 : disk_gib}
        max={1024}
        defaultValue={disk_gib}
      />
    </div>
  );
}

/** The same CPUs and memory, which change only while the VM is stopped. */
export function isMachine(of: Size, wanted: Size): boolean {
  return of.cpus === wanted.cpus && of.memory_mib === wanted.memory_mib;
}

export function readSize(form: FormData): Size {
  const [cpus, memory_mib, disk_gib] = ['cpus', 'memory_mib', 'disk_gib'].map((name) =>
    Number(form.get(name)),
  ) as [number, number, number];
  return { cpus, memory_mib, disk_gib };
}

export function labelsText(labels: Readonly<Record<string, string>>): string {
  return Object.entries(labels)
    .map(([key, value]) => `${key}=${value}`)
    .join(', ');
}

/** `a=1, b=2` → {a: '1', b: '2'}. @throws FieldError */
export function readLabels(text: string): Record<string, string> {
  const pairs = text
    .split(/[,\n]/)
    .map((each) => each.trim())
    .filter(Boolean);
  return Object.fromEntries(
    pairs.map((pair) => {
      const at = pair.indexOf('=');
      if (at < 1) throw new FieldError('labels', `Write labels as key=value: "${pair}" is not.`);
      return [pair.slice(0, at).trim(), pair.slice(at + 1).trim()];
    }),
  );
}

export function LabelsField({ of }: { readonly of?: Readonly<Record<string, string>> }) {
  return (
    <Field
      label="Labels"
      name="labels"
      defaultValue={labelsText(of ?? {})}
      placeholder="team=web, env=dev"
      hint="Names with values, to filter instances by"
      spellcheck={false}
    />
  );
}

interface DurationRange {
  readonly name: string;
  readonly min_s: number;
  readonly max_s: number;
}

interface Props {
  readonly range: DurationRange;
  readonly label: string;
  readonly hint: string;
  readonly seconds: number | null;
}

/** A duration as the command line takes it, or nothing for never. */
function DurationField({ range, label, hint, seconds }: Props) {
  return (
    <Field
      label={label}
      name={range.name}
      defaultValue={seconds === null ? '' : durationText(seconds)}
      placeholder="never"
      hint={hint}
      maxLength={20}
      autocomplete="off"
      spellcheck={false}
    />
  );
}

/** @returns seconds, or null for never @throws FieldError */
function durationOf(form: FormData, { name, min_s, max_s }: DurationRange): number | null {
  const text = String(form.get(name) ?? '').trim();
  if (['', 'off', 'never'].includes(text)) return null;
  const seconds = readDuration(text);
  if (seconds === null) throw new FieldError(name, `Enter a duration such as ${DURATION_EXAMPLES}.`);
  if (seconds < min_s || seconds > max_s)
    throw new FieldError(name, `Enter ${durationText(min_s)} to ${durationText(max_s)}.`);
  return seconds;
}
