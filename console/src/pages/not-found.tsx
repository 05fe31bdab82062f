import { Empty, PageHead } from '../ui/page.tsx';

export function NotFoundPage({ what = 'page' }: { readonly what?: string }) {
  return (
    <>
      <PageHead title="Not found" />
      <Empty icon="warning" title={`There is no such ${what}`}>
        <p>
          {what === 'page'
            ? 'Check its address.'
            : 'It was deleted, belongs to another organisation, or never existed.'}
        </p>
        <p>
          <a class="button plain" href="/">
            Go to the instances
          </a>
        </p>
      </Empty>
    </>
  );
}
