/** A scope for people: `*` in words, others as they are written. */
export function ScopeText({ scope }: { readonly scope: string }) {
  return scope === '*' ? <>All permissions</> : <code class="wrap">{scope}</code>;
}
