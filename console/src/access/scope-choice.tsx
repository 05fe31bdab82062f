/** Chooses what an API key may do: a preset, or single permissions. */
import { useState } from 'preact/hooks';
import { RESOURCES } from './scopes.ts';

/** Checkboxes for the scope of a key: everything, or single resources to read and to write. */
interface Props {
  readonly all?: string;
  readonly issue?: string | undefined;
}

export function ScopeChoice({ all: all_text = 'All permissions of its owner', issue }: Props) {
  const [all, setAll] = useState(true);
  return (
    <fieldset class="choice">
      <legend>Permissions</legend>
      <label>
        <input type="radio" name="scope-kind" value="all" checked={all} onChange={() => setAll(true)} />
        <span>{all_text}</span>
      </label>
      <label>
        <input type="radio" name="scope-kind" value="some" checked={!all} onChange={() => setAll(false)} />
        <span>Only these</span>
      </label>
      {!all && (
        <table class="table scopes">
          <thead>
            <tr>
              <th>Resource</th>
              <th>Read</th>
              <th>Write</th>
            </tr>
          </thead>
          <tbody>
            {RESOURCES.map((resource) => (
              <tr key={resource}>
                <th scope="row">{resource}</th>
                {['read', 'write'].map((action) => (
                  <td key={action}>
                    <input
                      type="checkbox"
                      name="scope"
                      value={`${resource}:${action}`}
                      aria-label={`${action} ${resource}`}
                    />
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {issue !== undefined && <p class="issue">{issue}</p>}
    </fieldset>
  );
}
