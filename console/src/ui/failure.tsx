import { Icon } from './icon.tsx';

/** An error, announced at once to screen readers. */
export function Failure({ text }: { readonly text: string | null | undefined }) {
  return (
    <div role="alert" class={text ? 'failure' : 'failure none'}>
      {text && (
        <>
          <Icon name="warning" />
          <span>{text}</span>
        </>
      )}
    </div>
  );
}
