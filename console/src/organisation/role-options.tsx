import { role } from '../live/membership.ts';
import { ROLES } from './roles.ts';

/** The options of a role field. Only owners may choose owner. */
export function RoleOptions() {
  return (
    <>
      {ROLES.map((each) => (
        <option key={each} value={each} disabled={role.value !== 'owner' && each === 'owner'}>
          {each}
        </option>
      ))}
    </>
  );
}
