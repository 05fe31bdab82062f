/** What a key may be allowed (docs/permissions.md). */
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

/** What is ticked, as a scope string; `all` where everything is. */
export function scopeOf(form: FormData, all: string): string {
  return form.get('scope-kind') === 'all' ? all : form.getAll('scope').join(' ');
}
