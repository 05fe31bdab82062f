import { useAction } from '../use-action.ts';
import { Button } from './button.tsx';

/** Goes on with a list where there is more of it. */
export function More({ more }: { readonly more: (() => Promise<void>) | undefined }) {
  const action = useAction(async () => more?.());
  if (!more) return null;
  return (
    <p class="more">
      <Button busy={action.busy} onClick={() => void action.run()}>
        Show more
      </Button>
    </p>
  );
}
