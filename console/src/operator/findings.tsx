/** Problems and weaknesses of the installation, each with its remedy. */
import type { OperatorFinding } from '../../../client/src/generated.ts';
import { Icon } from '../ui/icon.tsx';

export function Findings({ findings }: { readonly findings: readonly OperatorFinding[] }) {
  if (findings.length === 0) {
    return (
      <p class="panel finding-none">
        <Icon name="check" /> No problem and no weakness is known.
      </p>
    );
  }
  return (
    <ul class="findings panel">
      {findings.map(({ severity, check, found, next }, nth) => (
        <li key={`${check} ${nth}`} class={severity}>
          <Icon name={severity === 'problem' ? 'warning' : 'shield'} />
          <div>
            <p>
              <strong>{check}</strong> {severity === 'problem' && <span class="tag">problem</span>}
            </p>
            <p class="wrap">{found}</p>
            {next !== null && <p class="hint wrap">Next: {next}</p>}
          </div>
        </li>
      ))}
    </ul>
  );
}
