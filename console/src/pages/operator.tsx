/** The whole installation, for those who operate it. It changes nothing: changes are commands on the server. */
import { call } from '../api.ts';
import { Findings } from '../operator/findings.tsx';
import { Hosts } from '../operator/hosts.tsx';
import { ImageVersions } from '../operator/image-versions.tsx';
import { Organisations } from '../operator/organisations.tsx';
import { StorageAndMail } from '../operator/storage-and-mail.tsx';
import { Button } from '../ui/button.tsx';
import { Loaded, PageHead, Section } from '../ui/page.tsx';
import { useAction } from '../use-action.ts';
import { useQuery } from '../use-query.ts';

export function OperatorPage() {
  const status = useQuery('operator', () => call('getOperatorStatus', {}));
  const refresh = useAction(status.reload);
  return (
    <>
      <PageHead
        title="Operator"
        lead={`The whole installation${status.data === undefined ? '' : `, Berth ${status.data.version}`}. To change it, use commands on the server.`}
        actions={
          <Button busy={refresh.busy} onClick={() => void refresh.run()}>
            Check again
          </Button>
        }
      />
      <Section
        title="Findings"
        lead={
          <>
            What <code>berth doctor</code> finds on the server.
          </>
        }
      >
        <Loaded query={status} lines={3}>
          {({ findings }) => <Findings findings={findings} />}
        </Loaded>
      </Section>
      <Hosts />
      <Section title="Storage and mail">
        <Loaded query={status} lines={3}>
          {(data) => <StorageAndMail {...data} />}
        </Loaded>
      </Section>
      <Organisations />
      <ImageVersions />
    </>
  );
}
