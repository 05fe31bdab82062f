/** The scopes of a key (docs/permissions.md). */
export const RESOURCES = [
  'instances',
  'vm',
  'ssh_keys',
  'webhooks',
  'notifications',
  'api_keys',
  'org',
  'audit',
] as const;

/** The ticked boxes as a scope string; `all` if every box is ticked. */
export function scopeOf(form: FormData, all: string): string {
  return form.get('scope-kind') === 'all' ? all : form.getAll('scope').join(' ');
}
