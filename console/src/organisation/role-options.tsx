import { role } from '../live/membership.ts';
import { ROLES, type Role } from './roles.ts';

/** The options of a role field. Only owners may choose owner. */
export function RoleOptions({ selected }: { readonly selected?: Role }) {
  return (
    <>
      {ROLES.map((each) => (
        <option
          key={each}
          value={each}
          selected={selected === undefined ? undefined : each === selected}
          disabled={role.value !== 'owner' && each === 'owner'}
        >
          {each}
        </option>
      ))}
    </>
  );
}
