import { role } from '../live/membership.ts';
import { ROLES, type Role } from './roles.ts';

/** Of a choice of roles: only owners make owners. */
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
