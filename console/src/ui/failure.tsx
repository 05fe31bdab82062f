import { Icon } from './icon.tsx';

/** What went wrong, told at once to those who hear the page. */
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
