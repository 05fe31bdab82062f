/** Where the bytes are, and whether mail leaves. */
import type { OperatorStatus } from '../../../client/src/generated.ts';
import { bytes, plural } from '../format.ts';

export function StorageAndMail({ storage, data_folder, mail }: OperatorStatus) {
  const { free_bytes, total_bytes, path } = data_folder;
  return (
    <dl class="facts operator-facts panel">
      <div>
        <dt>Object storage</dt>
        <dd>
          {storage.kind === 's3' ? 'S3 bucket' : 'Folder'}
          <div class="dim wrap">{storage.place}</div>
        </dd>
      </div>
      <div>
        <dt>Stored</dt>
        <dd>
          {bytes(storage.disk_bytes)} of disks
          <div class="dim">{bytes(storage.image_bytes)} of images</div>
        </dd>
      </div>
      <div>
        <dt>Data folder</dt>
        <dd>
          {bytes(free_bytes)} free <span class="dim">of {bytes(total_bytes)}</span>
          <meter min={0} max={total_bytes} value={total_bytes - free_bytes} aria-label="Data folder in use" />
          <div class="dim wrap">{path}</div>
        </dd>
      </div>
      <div>
        <dt>Mail</dt>
        <dd>
          {mail.smtp ? 'A mail server is set' : 'No mail server is set'}
          <div class="dim">
            {mail.smtp
              ? `${plural(mail.waiting, 'mail')} waiting`
              : 'Mails are files in the data folder, under mail'}
          </div>
          {mail.failing > 0 && (
            <div class="bad">
              {plural(mail.failing, 'mail')} failing; the log says why, and each is tried again
            </div>
          )}
        </dd>
      </div>
    </dl>
  );
}
