/** `berth mfa …`: second factors. A passkey needs a browser: the console adds it. */
import { type Answer, type Berth, BerthError } from '../../../client/src/berth.ts';
import type { MfaFactor } from '../../../client/src/generated.ts';
import { type Call, type Command, PROOF } from '../command.ts';
import { UsageError } from '../command-error.ts';
import { qrCode } from '../qr-code.ts';
import { collect, findNamed, type Kind } from '../reading.ts';
import { asUser } from '../session.ts';
import { ago, cell, timeCell } from '../table.ts';

type Totp = Extract<Answer<'addMfaFactor'>, { type: 'totp' }>;
type Confirmed = Answer<'verifyMfaFactor'>;

const FACTOR: Kind<MfaFactor> = {
  what: 'second factor',
  list: 'berth mfa ls',
  detail: ({ type, created_at }) => `${KINDS[type]}, added ${ago(created_at)}`,
};
const KINDS = { totp: 'authenticator app', webauthn: 'passkey' } as const;
const TRIES = 3;

function codeOf(text: string): string {
  const code = text.replaceAll(' ', '');
  if (/^\d{6}$/.test(code)) return code;
  throw new UsageError('the code of an authenticator has six digits');
}

async function list(call: Call): Promise<undefined> {
  call.terminal.list(await asUser(call, (berth) => collect(berth.list('listMfaFactors', {}))), {
    headings: ['NAME', 'KIND', 'LAST USED', 'ADDED', 'ID'],
    row: ({ name, type, confirmed_at, last_used_at, created_at, id }) => [
      cell(confirmed_at === null ? `${name} (not confirmed)` : name, name),
      KINDS[type],
      timeCell(last_used_at),
      timeCell(created_at),
      id,
    ],
    more: { headings: ['CONFIRMED'], row: ({ confirmed_at }) => [timeCell(confirmed_at)] },
    quiet: ({ id }) => id,
    empty: 'No second factor: your password alone gives access. Add one: berth mfa add',
  });
}

async function add(call: Call): Promise<undefined> {
  const { args, terminal } = call;
  const asks = terminal.interactive && terminal.format === 'human';
  await asUser(call, async (berth) => {
    const added = await berth.call('addMfaFactor', {
      body: { type: 'totp', name: args[0] ?? 'authenticator' },
    });
    if (added.type !== 'totp') return;
    if (!asks) {
      const next = `berth mfa verify ${added.id} CODE`;
      const sentence = `Secret for the authenticator, shown only once: ${added.secret}\n${added.otpauth_url}\nConfirm it within an hour: ${next}`;
      return terminal.done(sentence, added, `${added.id} ${added.secret}`);
    }
    terminal.say('Scan this with your authenticator app, or type the secret into it:');
    terminal.picture(await qrCode(added.otpauth_url));
    terminal.say(`Secret: ${added.secret}`);
    printConfirmed(call, added.name, await confirmAsked(call, berth, added));
  });
}

/** Asks for the code again after a wrong one. */
async function confirmAsked({ terminal }: Call, berth: Berth, { id }: Totp): Promise<Confirmed> {
  for (let tried = 1; ; tried++) {
    const said = (await terminal.ask('Code of the app', null)).replaceAll(' ', '');
    try {
      return await berth.call('verifyMfaFactor', { path: { id }, body: { code: said } });
    } catch (error) {
      if (!(error instanceof BerthError) || error.status !== 400 || tried === TRIES) throw error;
      terminal.warn('That code is wrong. Wait for the next one.');
    }
  }
}

function printConfirmed({ terminal }: Call, name: string, confirmed: Confirmed): void {
  const { recovery_codes } = confirmed;
  const codes =
    recovery_codes === null
      ? 'Your recovery codes stay valid.'
      : `Recovery codes, shown only once. Each is good for one login without the app; keep them apart from your password:\n${recovery_codes.join('\n')}`;
  const use = recovery_codes === null ? 'a login accepts it too' : 'a login needs it';
  terminal.done(`${name} is confirmed: ${use} from now on.\n${codes}`, confirmed, recovery_codes?.join('\n'));
}

async function verify(call: Call): Promise<undefined> {
  const [said = '', text = ''] = call.args;
  const code = codeOf(text);
  await asUser(call, async (berth) => {
    const { id, name } = await findNamed(berth.list('listMfaFactors', {}), said, FACTOR);
    printConfirmed(call, name, await berth.call('verifyMfaFactor', { path: { id }, body: { code } }));
  });
}

async function remove(call: Call): Promise<undefined> {
  const gone = await asUser(call, async (berth) => {
    const found = await findNamed(berth.list('listMfaFactors', {}), call.args[0] ?? '', FACTOR);
    await berth.call('removeMfaFactor', { path: { id: found.id } });
    return found;
  });
  call.terminal.done(`Removed ${gone.name}.`, { removed: gone.id }, gone.id);
}

export const MFA_COMMANDS: readonly Command[] = [
  {
    name: 'mfa ls',
    password: 'unless_sudo',
    summary: 'list your second factors',
    example: 'berth mfa ls',
    options: PROOF,
    run: list,
  },
  {
    name: 'mfa add',
    password: 'unless_sudo',
    args: ['[NAME]'],
    summary:
      'add an authenticator app: shows a QR code and its secret, asks for a code, prints recovery codes',
    example: 'berth mfa add phone',
    options: PROOF,
    run: add,
  },
  {
    name: 'mfa verify',
    password: 'unless_sudo',
    args: ['FACTOR', 'CODE'],
    summary: 'confirm an authenticator app that was added without a terminal',
    example: 'berth mfa verify phone 492039',
    options: PROOF,
    run: verify,
  },
  {
    name: 'mfa rm',
    password: 'unless_sudo',
    args: ['FACTOR'],
    summary: 'remove a second factor; with the last one, the recovery codes end',
    example: 'berth mfa rm phone',
    options: PROOF,
    run: remove,
  },
];
