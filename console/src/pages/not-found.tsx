import { Empty, PageHead } from '../ui/page.tsx';

export function NotFoundPage({ what = 'page' }: { readonly what?: string }) {
  return (
    <>
      <PageHead title="Not found" />
      <Empty icon="warning" title={`There is no such ${what}`}>
        <p>It was deleted, is of another organisation, or never was.</p>
        <p>
          <a class="button plain" href="/">
            To the instances
          </a>
        </p>
      </Empty>
    </>
  );
}
