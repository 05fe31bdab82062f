/** Commands on images: a list from the API, and server commands that are loaded only when typed. */
import type { Call, Command } from '../command.ts';
import { cell } from '../table.ts';

const GIB = 2 ** 30;

export const IMAGE_COMMANDS: readonly Command[] = [
  {
    name: 'image ls',
    short: ['images'],
    summary: 'list the images that instances can use',
    example: 'berth image ls',
    run: async ({ session, terminal }) => {
      const berth = await session.berth();
      const { data } = await berth.call('listImages', {});
      terminal.list(data, {
        headings: ['IMAGE', 'CURRENT', 'SMALLEST DISK', 'VERSIONS'],
        row: ({ id, current, size_bytes, versions }) => [
          id,
          cell(current?.slice(0, 12) ?? '-', current),
          cell(
            size_bytes === null ? '-' : `${Math.ceil(size_bytes / GIB)} GiB`,
            size_bytes && GIB * Math.ceil(size_bytes / GIB),
          ),
          cell(versions.map((each) => each.slice(0, 12)).join(' '), versions.join(' ')),
        ],
        quiet: ({ id }) => id,
        empty: 'No host has an image yet.',
      });
      return undefined;
    },
  },
];

type Parts = typeof import('../image-commands.ts');
type Work = import('../image-commands.ts').ImageWork;
type Server = import('../server-context.ts').ServerContext;

/** Shows the steps, then prints the result. */
async function onServer(
  { terminal, signal }: Call,
  work: (images: Parts, server: Server, parts: Work) => Promise<string>,
): Promise<undefined> {
  const [context, images] = await Promise.all([
    import('../server-context.ts'),
    import('../image-commands.ts'),
  ]);
  const said = await context.withServer((server) => work(images, server, { terminal, signal }));
  process.stdout.write(said);
}

export const IMAGE_SERVER_COMMANDS: readonly Command[] = [
  {
    name: 'image build',
    args: ['NAME'],
    summary: 'build an image from Debian packages: debian-12 or debian-12-systemd',
    example: 'berth image build debian-12-systemd',
    on_server: true,
    run: (call) =>
      onServer(call, (images, server, work) => images.buildImage(server, call.args[0] ?? '', work)),
  },
  {
    name: 'image add',
    args: ['NAME', 'FILE'],
    summary: 'create an image from a tarball, an OCI layout, or a raw or qcow2 disk',
    example: 'berth image add tools ./tools.oci.tar',
    on_server: true,
    options: {
      'max-gib': { type: 'string', value: 'N', help: 'the maximum size when unpacked; default: 16' },
    },
    run: (call) => {
      const { args, options } = call;
      return onServer(call, (images, server, work) => {
        const max_gib = Number(options.text('max-gib') ?? images.DEFAULT_MAX_GIB);
        return images.addImage(server, [args[0] ?? '', args[1] ?? ''], max_gib, work);
      });
    },
  },
  {
    name: 'image rm',
    args: ['NAME', '[VERSION]'],
    summary: 'remove an image that no disk needs, or one version of it',
    example: 'berth image rm tools',
    on_server: true,
    run: (call) =>
      onServer(call, (images, server) =>
        images.removeImages(server, call.args[0] ?? '', call.args[1] ?? null),
      ),
  },
];
