/** An instance's labels as tags. */
import { Fragment } from 'preact';

export function Labels({ labels }: { readonly labels: Readonly<Record<string, string>> }) {
  return (
    <>
      {Object.entries(labels).map(([key, value]) => (
        <Fragment key={key}>
          {' '}
          <span class="tag">
            {key}={value}
          </span>
        </Fragment>
      ))}
    </>
  );
}
