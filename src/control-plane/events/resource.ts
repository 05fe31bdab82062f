/** What an event is about: the resource in its data, under the name that its type begins with. Pure. */

export interface EventResource {
  /** `instance`, `port`, `ssh_key`, `api_key`, `member` or `webhook`. */
  readonly type: string;
  readonly id: string;
  /** A member's is the e-mail address, a port's its hostname. */
  readonly name: string | null;
}

/** Events of VMs, disks and egress carry their instance. */
function resourceTypeOf(event_type: string): string {
  const word = event_type.split('.')[0] ?? '';
  return word === 'vm' || word === 'disk' || word === 'egress' ? 'instance' : word;
}

/** Null where the data has no such resource. */
export function resourceOf(event_type: string, data: unknown): EventResource | null {
  const type = resourceTypeOf(event_type);
  const found = (data as Record<string, unknown>)[type] as Partial<Record<string, unknown>> | undefined;
  if (typeof found?.['id'] !== 'string') return null;
  const name = found['email'] ?? found['hostname'] ?? found['name'];
  return { type, id: found['id'], name: typeof name === 'string' ? name : null };
}
