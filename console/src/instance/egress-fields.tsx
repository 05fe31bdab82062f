/** The fields of an egress policy, for new and existing instances. */
import type { EgressMode, Instance } from '../../../client/src/berth.ts';
import { Select, TextArea } from '../ui/field.tsx';
import { NEW_DEFAULTS } from './as-commands.ts';

type Egress = Instance['egress'];

const MODES: readonly (readonly [EgressMode, string])[] = [
  ['open', 'open: the public internet'],
  ['deny', 'deny: nothing'],
  ['allow', 'allow: only what the list allows'],
];

export function EgressFields({ of = NEW_DEFAULTS.egress }: { readonly of?: Egress }) {
  return (
    <>
      <Select label="What the VM may reach" name="mode" defaultValue={of.mode}>
        {MODES.map(([mode, words]) => (
          <option key={mode} value={mode}>
            {words}
          </option>
        ))}
      </Select>
      <TextArea
        label="Allowed hosts"
        name="allow"
        rows={Math.min(12, Math.max(3, of.allow.length + 1))}
        spellcheck={false}
        defaultValue={of.allow.join('\n')}
        hint="One a line: example.com, *.example.com, 203.0.113.0/24, each with an optional :port. A name without a port means 80 and 443. The list applies in mode allow."
      />
    </>
  );
}

export function readEgress(form: FormData): Egress {
  const allow = String(form.get('allow'))
    .split(/[\s,]+/)
    .filter((each) => each !== '');
  return { mode: String(form.get('mode')) as EgressMode, allow };
}
