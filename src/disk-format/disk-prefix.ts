/** Where all objects of an instance's disk are. */
export function diskPrefix(instance_id: string): string {
  return `disks/${instance_id}`;
}
