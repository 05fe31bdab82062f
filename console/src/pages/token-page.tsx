/** An action of a logged-in user with a token from a mail, taken from the link or typed. */
import { useState } from 'preact/hooks';
import { TokenField } from '../account/credential-fields.tsx';
import { tokenIn } from '../router.ts';
import { Form } from '../ui/form.tsx';
import { PageHead } from '../ui/page.tsx';

interface Props {
  readonly title: string;
  readonly lead?: string;
  readonly verb: string;
  readonly token: () => string;
  readonly work: (token: string) => Promise<void>;
}

export function TokenPage({ verb, token, work, ...head }: Props) {
  const [known] = useState(token);
  return (
    <>
      <PageHead {...head} />
      <Form
        class="stack narrow"
        verb={verb}
        primary
        work={(form) => work(tokenIn(String(form.get('token'))))}
      >
        {() => <TokenField token={known} />}
      </Form>
    </>
  );
}
