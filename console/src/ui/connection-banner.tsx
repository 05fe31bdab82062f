/** Says that the connection is lost, and how old the page is. Screen readers announce both changes. */
import { useEffect } from 'preact/hooks';
import { clockTime } from '../format.ts';
import { lost_since_ms, onReconnect } from '../live/connection.ts';
import { Icon } from './icon.tsx';
import { tell } from './toasts.tsx';

export function ConnectionBanner() {
  const since_ms = lost_since_ms.value;
  useEffect(() => onReconnect(() => tell('good', 'Connected again. The page is current.')), []);
  return (
    <div class="connection" role="status">
      {since_ms !== null && (
        <p class="connection-lost">
          <Icon name="warning" />
          <span>
            <strong>Connection lost.</strong> Reconnecting… Shown as of {clockTime(since_ms)}.
          </span>
        </p>
      )}
    </div>
  );
}
