/** The stored versions of images. */
import { call } from '../api.ts';
import { bytes } from '../format.ts';
import { ListTable } from '../ui/loaded-list.tsx';
import { Section } from '../ui/page.tsx';
import { Time } from '../ui/time.tsx';
import { useList } from '../use-list.ts';

export function ImageVersions() {
  const list = useList('operator images', (query) =>
    call('listOperatorImages', { query: { limit: 50, ...query } }).then((page) => ({
      ...page,
      data: page.data.map((row) => ({ ...row, id: `${row.image} ${row.version}` })),
    })),
  );
  return (
    <Section
      title="Images"
      lead={
        <>
          Versions in object storage. On the server, <code>berth image</code> adds and removes them.
        </>
      }
    >
      <ListTable
        list={list}
        empty={<p class="panel dim">No image is stored yet.</p>}
        columns={[
          {
            head: 'Image',
            cell: ({ image, version, current }) => (
              <>
                <strong>{image}</strong> {current && <span class="tag accent">for new disks</span>}
                <div>
                  <code class="dim">{version.slice(0, 12)}</code>
                </div>
              </>
            ),
          },
          { head: 'Disks', class: 'number', cell: ({ disks }) => disks },
          { head: 'Size', class: 'number nowrap', cell: ({ size_bytes }) => bytes(size_bytes) },
          {
            head: 'Stored',
            class: 'number nowrap',
            below: true,
            cell: ({ stored_bytes }) => bytes(stored_bytes),
          },
          {
            head: 'Created',
            class: 'nowrap',
            below: true,
            cell: ({ created_at }) => <Time at={created_at} />,
          },
        ]}
      />
    </Section>
  );
}
