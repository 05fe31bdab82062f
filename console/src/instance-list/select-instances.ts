/** Which instances the list shows, and in which order. */
import type { Instance } from '../../../client/src/berth.ts';
import { COLUMNS, stateOf } from './columns.tsx';

export interface Filter {
  /** A part of a name, an id or a label. */
  readonly text: string;
  /** Empty: every state. */
  readonly state: string;
  /** `key=value`; empty: any. */
  readonly label: string;
}
export const NO_FILTER: Filter = { text: '', state: '', label: '' };

export interface Order {
  /** A column's. */
  readonly key: string;
  readonly descending: boolean;
}
export const NEWEST_FIRST: Order = { key: 'created', descending: true };

export const labelsOf = ({ labels }: Pick<Instance, 'labels'>): readonly string[] =>
  Object.entries(labels).map(([key, value]) => `${key}=${value}`);

function fits(instance: Instance, { text, state, label }: Filter): boolean {
  if (state !== '' && stateOf(instance) !== state) return false;
  const labels = labelsOf(instance);
  if (label !== '' && !labels.includes(label)) return false;
  const wanted = text.trim().toLowerCase();
  return [instance.name, instance.id, ...labels].some((word) => word.toLowerCase().includes(wanted));
}

/** Equal rows keep the list's order: newest first. */
export function selectInstances(
  list: readonly Instance[],
  filter: Filter,
  { key, descending }: Order,
): readonly Instance[] {
  const found = list.filter((each) => fits(each, filter));
  const sortBy = COLUMNS.find((column) => column.key === key)?.sort;
  if (sortBy === undefined) return found;
  const sign = descending ? -1 : 1;
  return found.toSorted((a, b) => {
    const [x, y] = [sortBy(a), sortBy(b)];
    return x === y ? 0 : x < y ? -sign : sign;
  });
}

/** The distinct values of the list, sorted: the choices of a filter. */
export function choicesOf(list: readonly Instance[], of: (each: Instance) => readonly string[]): string[] {
  return [...new Set(list.flatMap(of))].sort();
}
