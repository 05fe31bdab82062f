/**
 * The page where a user confirms or refuses the login of a program, such as the command line. The program prints a link
 * to this page with a code (`?code=`). The code stays in the address while the user logs in, also at the OpenID
 * provider.
 */
import { useState } from 'preact/hooks';
import type { DeviceLogin } from '../../../client/src/generated.ts';
import { programName } from '../../../client/src/words.ts';
import { call } from '../api.ts';
import { user } from '../session.ts';
import { Button } from '../ui/button.tsx';
import { Field } from '../ui/field.tsx';
import { Form } from '../ui/form.tsx';
import { Failure, PageHead } from '../ui/page.tsx';
import { Time } from '../ui/time.tsx';
import { useAction } from '../use-action.ts';
import { useQuery } from '../use-query.ts';

const TITLE = 'Log in a program';

/** As the program shows it: `BCDF-GHJK`. */
function codeIn(said: string): string {
  const letters = said.toUpperCase().replace(/[^A-Z]/g, '');
  return letters.length === 8 ? `${letters.slice(0, 4)}-${letters.slice(4)}` : '';
}

export function DevicePage() {
  const [code, setCode] = useState(() => codeIn(new URLSearchParams(location.search).get('code') ?? ''));
  const [told, setTold] = useState<string | null>(null);
  if (told !== null) return <PageHead title={TITLE} lead={told} />;
  if (code === '') return <AskCode onCode={setCode} />;
  return <Asked key={code} code={code} onDone={setTold} />;
}

function AskCode({ onCode }: { readonly onCode: (code: string) => void }) {
  const work = async (form: FormData) => {
    const code = codeIn(String(form.get('code')));
    if (code === '') throw new Error('A code has eight letters. The program shows it.');
    onCode(code);
  };
  return (
    <>
      <PageHead title={TITLE} lead="Enter the code of eight letters that the program shows." />
      <Form class="stack narrow" verb="Continue" primary work={work}>
        <Field label="Code" name="code" autocomplete="off" spellcheck={false} required autofocus />
      </Form>
    </>
  );
}

interface Props {
  readonly code: string;
  readonly onDone: (told: string) => void;
}

function Asked({ code, onDone }: Props) {
  const query = useQuery(code, (signal) => call('getDeviceLogin', { path: { user_code: code } }, { signal }));
  if (query.data !== undefined) return <Question login={query.data} onDone={onDone} />;
  if (query.error === null) return <PageHead title={TITLE} />;
  return (
    <>
      <PageHead title={TITLE} />
      <Failure
        text={`No program waits with the code ${code}: it was answered already, or is older than ten minutes. Start the program again.`}
      />
    </>
  );
}

function Question({ login, onDone }: { readonly login: DeviceLogin; readonly onDone: Props['onDone'] }) {
  const path = { user_code: login.user_code };
  const confirm = useAction(async () => {
    await call('confirmDeviceLogin', { path, body: {} });
    onDone('Confirmed. The program goes on within seconds; you may close this page.');
  });
  const refuse = useAction(async () => {
    await call('refuseDeviceLogin', { path });
    onDone('Refused. The program gets no access.');
  });
  return (
    <>
      <PageHead
        title={TITLE}
        lead={`Confirm only if you have just started this program yourself, and it shows this code. It can then act as ${user.value?.email ?? 'you'}${login.sudo ? ', also where Berth asks you to confirm that it is you' : ''}.`}
      />
      <div class="panel stack">
        <dl class="facts">
          <div>
            <dt>Code</dt>
            <dd>
              <strong>{login.user_code}</strong>
            </dd>
          </div>
          <div>
            <dt>Program</dt>
            <dd title={login.user_agent}>{programName(login.user_agent)}</dd>
          </div>
          <div>
            <dt>Address</dt>
            <dd>{login.ip}</dd>
          </div>
          <div>
            <dt>Asked</dt>
            <dd>
              <Time at={login.created_at} />
            </dd>
          </div>
        </dl>
        <div class="page-actions">
          <Button kind="primary" busy={confirm.busy} onClick={() => void confirm.run()}>
            Confirm
          </Button>
          <Button busy={refuse.busy} onClick={() => void refuse.run()}>
            Refuse
          </Button>
        </div>
      </div>
      <Failure text={confirm.error ?? refuse.error} />
    </>
  );
}
