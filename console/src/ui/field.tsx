/** Form fields with label, hint and error, connected for screen readers. */
import { type ComponentChildren, createContext, type JSX } from 'preact';
import { useContext, useEffect, useId, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { type Issues, NO_ISSUES } from './validity.ts';

/** The issues of the form around, by the names of its fields. */
export const FieldIssues = createContext<Issues>(NO_ISSUES);

interface Common {
  readonly label: string;
  readonly hint?: ComponentChildren;
}

interface Named {
  readonly name?: JSX.IntrinsicElements['input']['name'];
}

interface Texts extends Common {
  readonly issue: string | undefined;
}

/** The texts of a field, with the form's issue of the field with this name. */
function useTexts({ label, hint, name }: Common & Named): Texts {
  const issues = useContext(FieldIssues);
  const issue = typeof name === 'string' ? issues[name] : undefined;
  return { label, issue, ...(hint === undefined ? {} : { hint }) };
}

function Around({
  id,
  label,
  hint,
  issue,
  children,
}: Texts & { readonly id: string; readonly children: ComponentChildren }) {
  return (
    <div class={issue === undefined ? 'field' : 'field wrong'}>
      <label for={id}>{label}</label>
      {children}
      {issue !== undefined && (
        <p class="issue" id={`${id}-issue`}>
          {issue}
        </p>
      )}
      {hint !== undefined && issue === undefined && (
        <p class="hint" id={`${id}-hint`}>
          {hint}
        </p>
      )}
    </div>
  );
}

function described(id: string, { hint, issue }: Texts) {
  if (issue !== undefined) return { 'aria-invalid': true, 'aria-describedby': `${id}-issue` } as const;
  return hint === undefined ? {} : { 'aria-describedby': `${id}-hint` };
}

/** The browser applies `autofocus` only when a page or dialog opens; this also applies it to later elements. */
function useFocus<T extends HTMLElement>(wanted: boolean) {
  const element = useRef<T>(null);
  useEffect(() => {
    if (wanted) element.current?.focus();
  }, [wanted]);
  return element;
}

export function Field({ label, hint, ...rest }: Common & JSX.IntrinsicElements['input']) {
  const id = useId();
  const element = useFocus<HTMLInputElement>(rest.autofocus === true);
  const common = useTexts({ label, hint, name: rest.name });
  return (
    <Around id={id} {...common}>
      <input {...rest} ref={element} id={id} {...described(id, common)} />
    </Around>
  );
}

export function TextArea({ label, hint, ...rest }: Common & JSX.IntrinsicElements['textarea']) {
  const id = useId();
  const common = useTexts({ label, hint, name: rest.name });
  return (
    <Around id={id} {...common}>
      <textarea {...rest} id={id} {...described(id, common)} />
    </Around>
  );
}

/** `defaultValue` is chosen at first, and after a reset. As for other fields, a new one is chosen until the user has chosen. */
export function Select({
  label,
  hint,
  children,
  defaultValue,
  ...rest
}: Common & JSX.IntrinsicElements['select'] & { readonly defaultValue?: string }) {
  const id = useId();
  const element = useRef<HTMLSelectElement>(null);
  const common = useTexts({ label, hint, name: rest.name });
  // Preact has no `defaultValue` of a select. After each rendering, because options may come later.
  useLayoutEffect(() => {
    if (defaultValue === undefined) return;
    for (const option of element.current?.options ?? []) {
      const is_default = option.value === defaultValue;
      if (option.defaultSelected !== is_default) option.defaultSelected = is_default;
    }
  });
  return (
    <Around id={id} {...common}>
      <select {...rest} ref={element} id={id} {...described(id, common)}>
        {children}
      </select>
    </Around>
  );
}

/** The form's issue of a group of boxes, which are no field with a text of its own. */
export function GroupIssue({ name }: { readonly name: string }) {
  const issue = useContext(FieldIssues)[name];
  return issue === undefined ? null : <p class="issue">{issue}</p>;
}

interface CheckboxProps extends Common {
  readonly name: string;
  readonly defaultChecked?: boolean;
}

export function Checkbox({ label, hint, name, defaultChecked = false }: CheckboxProps) {
  const id = useId();
  return (
    <div class="check">
      <input
        type="checkbox"
        id={id}
        name={name}
        defaultChecked={defaultChecked}
        {...(hint === undefined ? {} : { 'aria-describedby': `${id}-hint` })}
      />
      <label for={id}>{label}</label>
      {hint !== undefined && (
        <p class="hint" id={`${id}-hint`}>
          {hint}
        </p>
      )}
    </div>
  );
}

interface Props {
  /** What gets the name: `API key`. */
  readonly what: string;
  /** The names in use. */
  readonly taken: readonly string[];
  readonly placeholder?: string;
  readonly hint?: string;
  readonly optional?: boolean;
}

/** The name of a new thing. It warns of a name in use, because people and commands can then not tell the two apart. */
export function NameField({ what, taken, optional = false, hint, ...rest }: Props) {
  const [name, setName] = useState('');
  const is_taken = taken.includes(name.trim());
  const warning = <span class="name-taken">Another {what} has this name. Choose one that differs.</span>;
  return (
    <Field
      {...rest}
      label="Name"
      name="name"
      required={!optional}
      autofocus={!optional}
      maxLength={100}
      onInput={(event) => setName(event.currentTarget.value)}
      {...(is_taken ? { hint: warning } : hint === undefined ? {} : { hint })}
    />
  );
}
