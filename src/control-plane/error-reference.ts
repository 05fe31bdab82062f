/**
 * Writes the text of `docs/errors.md` (`npm run documents`): what each error code of the API, each reason for a VM's
 * state and each failure of a flush means, and what to do about it. The types require a text for each code.
 */
import { FLUSH_FAILURES, type VmReasonCode } from '../protocol/types.ts';
import { ERROR_CODES, type ErrorCode } from '../shared/errors.ts';
import { markdownTable } from '../shared/markdown-table.ts';

interface ErrorText {
  readonly cause: string;
  readonly remedy: string;
}

/** Of a VM in that state. */
interface ReasonText {
  readonly state: string;
  readonly remedy: string;
}

const ERRORS: Readonly<Record<ErrorCode, ErrorText>> = {
  INVALID_REQUEST: {
    cause: 'the body, query, a header or the cursor is malformed; a field or parameter is unknown',
    remedy: 'correct what `details` name',
  },
  UNAUTHENTICATED: {
    cause: 'the credential is missing, wrong, expired or revoked; the e-mail address or password is wrong',
    remedy: 'log in again, or use another key',
  },
  Unauthenticated: { cause: 'the same, on the routes below `/v1/webhooks`', remedy: 'the same' },
  MFA_REQUIRED: {
    cause: 'the password is right; the second factor is missing or wrong',
    remedy:
      'send the factor with the login; if every factor is lost, the operator runs `berth user reset-mfa`',
  },
  FORBIDDEN: {
    cause:
      "the scope or role does not allow the call; a key would get more scope than its creator has; the call needs a session; the account's address is not confirmed; passwords are switched off",
    remedy:
      'use a key with that scope, or ask an owner or admin; log in at the OpenID provider, in the console; confirm the address (`PUT /v1/me/email` with the same address sends the token again)',
  },
  SUDO_REQUIRED: {
    cause:
      'a destructive call needs a password that was entered recently, or a recent login at the OpenID provider',
    remedy: '`POST /v1/auth/sudo` or, in a browser, `POST /v1/auth/oidc/sudo`; then repeat the call',
  },
  NOT_FOUND: {
    cause:
      'the resource does not exist, or is not visible to you; the id is malformed; the generation is no longer kept',
    remedy: 'check the id and the organisation',
  },
  CONFLICT: {
    cause:
      'the present state does not allow the call, the name or key exists already, or output of an exec is no longer kept (then the detail of `offset` is `lost N, first kept M`)',
    remedy: 'do what the message says',
  },
  VM_NOT_RUNNING: {
    cause: 'the call needs a running VM',
    remedy: '`POST …/vm`, wait until it runs, then repeat the call',
  },
  IDEMPOTENCY_IN_PROGRESS: {
    cause: 'the first request with this key is still being served',
    remedy: 'repeat after `Retry-After`; a second flush with the key waits for the same receipt instead',
  },
  PRECONDITION_FAILED: {
    cause:
      'the resource has changed since the `ETag` in `If-Match`, or a file exists that `If-None-Match: *` excludes',
    remedy: 'read it again, then decide again',
  },
  PAYLOAD_TOO_LARGE: {
    cause:
      'the body is larger than 1 MiB, without a credential than 64 KiB; for `POST …/vm/exec`, whose stdin may have 1 MiB, larger than 4 MiB',
    remedy: 'send less; copy large input into the guest with `berth cp`',
  },
  UNSUPPORTED_MEDIA_TYPE: {
    cause: 'the request has a body that is not `application/json`',
    remedy: 'send JSON, with that `Content-Type`',
  },
  RANGE_NOT_SATISFIABLE: {
    cause: 'the file has no byte in the range of `Range`; `Content-Range` has its size',
    remedy: 'ask for a range that begins before its end',
  },
  MISDIRECTED_REQUEST: {
    cause:
      'Berth does not answer to the name in `Host`: it is not that of the public URL, `localhost`, a loopback address or one of `BERTH_HOSTS`',
    remedy: 'use the public URL; the operator adds other names to `BERTH_HOSTS`',
  },
  IDEMPOTENCY_KEY_REUSED: {
    cause: 'the key was used for another request',
    remedy: 'use a new key for a new request',
  },
  ACCOUNT_LOCKED: {
    cause: 'five wrong passwords or factors in a row',
    remedy:
      'repeat after `Retry-After`, reset the password by mail, or the operator runs `berth user unlock`',
  },
  RATE_LIMITED: {
    cause:
      'too many requests, more than 20,000 changes of a user or service account in an hour (the message says so), or too many mails of an organisation, or to one address ([five of a kind in a quarter of an hour](notifications.md#mail))',
    remedy: 'repeat after `Retry-After`',
  },
  QUOTA_EXCEEDED: {
    cause:
      'a quota of the organisation (`GET /v1/orgs/:id/quota`) or of the account is used up, or another limit is reached, such as the pinned generations of an instance; the message and `details` name it',
    remedy:
      "do what the message says; the operator raises an organisation's quota with `berth org quota`, and the defaults with `BERTH_QUOTA_DEFAULTS`",
  },
  INTERNAL: {
    cause: 'a bug of ours; the answer contains no internal detail',
    remedy: 'send us the `request_id`',
  },
  BAD_GATEWAY: {
    cause: 'nothing listens at the port in the VM, or what listens there does not speak HTTP',
    remedy: 'start the program in the VM, and let it listen at that port on all addresses (0.0.0.0)',
  },
  UNAVAILABLE: {
    cause:
      'the database, the object store, a host or a free port is missing, or a flush failed; nothing is lost',
    remedy:
      'repeat after `Retry-After`, which is 60 s where only somebody else can change it; `/readyz` names the part that is unavailable, and reports a full database disk within 5 s',
  },
  DISK_FULL: {
    cause: "the guest's file system has no room for the file; what was there before is unchanged",
    remedy: 'delete something in the guest, or increase `disk_gib`',
  },
};

const ORDINARY: ReasonText = { state: 'the ordinary ones', remedy: '' };
const BY_THE_GUEST: ReasonText = { state: 'stopping, restarting', remedy: 'the guest did it' };
const TIMEOUT: ReasonText = {
  state: 'failed',
  remedy:
    "the guest's agent did not answer; the console log says how far the guest came (`berth logs`). Start the VM again, or [restore](persistence.md) an earlier generation",
};

const REASONS: Readonly<Record<VmReasonCode, readonly ReasonText[]>> = {
  start_requested: [ORDINARY],
  stop_requested: [ORDINARY],
  restart_requested: [ORDINARY],
  suspend_requested: [ORDINARY],
  ready: [ORDINARY],
  stopped: [ORDINARY],
  suspended: [ORDINARY],
  resumed: [ORDINARY],
  guest_poweroff: [BY_THE_GUEST],
  guest_reboot: [BY_THE_GUEST],
  woken: [{ state: 'starting', remedy: 'a connection to its SSH port started it (`wake_on_connect`)' }],
  restart_on_failure: [
    { state: 'starting', remedy: "it had failed, and the instance's `restart` started it again" },
  ],
  idle: [{ state: 'stopping, stopped', remedy: 'it was not used for `idle_timeout_seconds`' }],
  host_drain: [
    {
      state: 'suspending, suspended, stopping, stopped, starting',
      remedy:
        'its host is being drained: the VM continues on another by itself. Your own start, stop or deletion takes precedence',
    },
  ],
  flush_pending: [
    { state: 'stopping', remedy: 'the final flush waits for what the message names; it continues by itself' },
  ],
  recovered: [
    {
      state: 'running, stopped',
      remedy:
        'the writes of the last boot after the head are lost; the message names the generation. Or, after a start by `restart`, only what was in memory is lost',
    },
  ],
  cold_boot: [
    {
      state: 'running',
      remedy:
        'the VM could not be resumed, so it booted from its disk as it was at the suspend; the contents of its memory are lost. The message says why',
    },
  ],
  resume_failed: [
    {
      state: 'suspended',
      remedy:
        'a start could not run the guest, and its memory and disk are as they were; the message says why. Start the VM again: another host may take it. After a drain that happens by itself. A stop drops the memory, and the next start boots',
    },
  ],
  suspend_failed: [
    {
      state: 'running',
      remedy: 'the suspend failed, and the VM keeps running; the message says why. Repeat the suspend',
    },
  ],
  vm_died: [
    {
      state: 'failed',
      remedy:
        'QEMU ended; start the VM again, its host keeps what it wrote. Or its host has lost what it wrote, as the message says: the next start continues from the last saved generation',
    },
  ],
  guest_panicked: [
    { state: 'failed', remedy: "the message ends with the kernel's last console output; start the VM again" },
  ],
  boot_timeout: [TIMEOUT],
  starting_timeout: [TIMEOUT],
  restarting_timeout: [TIMEOUT],
  suspending_timeout: [TIMEOUT],
  start_failed: [{ state: 'failed', remedy: 'the message gives the error of QEMU or the host' }],
  disk_full: [
    { state: 'failed', remedy: 'free space on the host, start the VM again' },
    {
      state: 'running',
      remedy:
        'the guest waits for space on the host and sees no error; free some, and the VM continues by itself with the reason `ready`',
    },
  ],
  disk_error: [
    {
      state: 'running',
      remedy: "the same for another error of the host's disk; the message gives the error",
    },
  ],
  guest_agent_silent: [
    {
      state: 'running',
      remedy:
        "the guest's agent (`qemu-ga`) has not answered for 20 s, or sends invalid answers. SSH works; commands, metrics and changed SSH keys wait, and after a revocation the port is closed. The reason is `ready` again once the agent answers: start `qemu-ga` in the guest again, or restart the VM",
    },
  ],
  ssh_unavailable: [
    {
      state: 'running',
      remedy:
        "the guest's agent answers, but its sshd does not start or listen; the message has sshd's own words. Commands, files and the console work (`berth exec`, `berth console`): repair sshd there, and the reason is `ready` again within seconds. GET …/ssh answers 409 until then",
    },
  ],
  network_unavailable: [{ state: 'running', remedy: "the same where the guest's network does not answer" }],
  image_missing: [
    {
      state: 'failed',
      remedy:
        'the image is neither on the host nor complete in the object store; the message names what is missing: restore that from a copy',
    },
  ],
  segment_corrupt: [
    {
      state: 'failed, at the start or when the guest reads it',
      remedy: 'the message names the object; restore it from a copy',
    },
  ],
  object_store_unavailable: [{ state: 'failed', remedy: 'repair the object store, start the VM again' }],
  control_plane_away: [
    { state: 'failed', remedy: 'the host could not reach the control plane; start the VM again' },
  ],
  host_lost: [
    {
      state: 'failed',
      remedy:
        'its host is silent; start the VM again, from the last durable generation ([docs/fleet.md](fleet.md))',
    },
  ],
  fenced: [{ state: 'failed', remedy: 'another boot has taken over the disk' }],
};

/** Of a flush, beside the reasons of VMs that name an error. */
const FAILURES: Readonly<Record<(typeof FLUSH_FAILURES)[number], string>> = {
  flush_failed:
    "the message gives the host's error, or says that the host named a commit that is not the head; dirty data stays marked, and the next flush includes it",
  interrupted: "the host's agent was restarted during the flush; flush again",
  vm_gone:
    'the VM ended before its flush began: a stop, or its next boot, saves what it has written; if its host has lost that, the message says so',
};

const HEAD = `# Errors

Generated by \`npm run documents\` from \`src/control-plane/error-reference.ts\`.

Every error has the same body, \`{"error":{"code","message","request_id","details":[{"field","issue"}]}}\`. The \`message\` describes this error, and \`details\` name the fields that it concerns. Quote the \`request_id\` (also in \`X-Request-Id\`) when you ask for help: it is in the log.

A request with \`Accept: application/problem+json\` gets errors as problem details ([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)): \`{"type":"about:blank","title","status","detail","code","request_id","details"}\`.`;

const STORE = `## An object store of another installation

If \`BERTH_S3_BUCKET\` (or the folder of objects) is not the one that this installation has [marked](adr/0017-mark-of-the-object-store.md), the control plane does not start (exit code 2), and a host is not ready and answers flushes with 503.

| message | what to do |
|---|---|
| \`it belongs to another installation of Berth\` | name your own bucket, or an empty one for a new installation |
| \`it is another object store than before, or it was emptied\` | name the object store used so far; if you moved its objects, move the object \`berth-store\` too |`;

const REASONS_HEAD = `## Reasons of a VM

\`vm.reason.code\` says why a VM is in its state; \`message\` gives the details.`;

const FLUSHES_HEAD = `## Failures of a flush

\`error.code\` of a \`disk.flush_failed\` event is one of the codes above that name an error (\`flush_pending\` for the flush of a stop), or \`flush_failed\`. The error message of a call that waits for its flush also covers the other two.`;

export function errorsText(): string {
  const parts = [HEAD, errorTable(), STORE, REASONS_HEAD, reasonTable(), FLUSHES_HEAD, failureTable()];
  return `${parts.join('\n\n')}\n`;
}

function errorTable(): string {
  const rows = Object.entries(ERRORS).map(([code, { cause, remedy }]) => [
    String(ERROR_CODES[code as ErrorCode].status),
    `\`${code}\``,
    cause,
    remedy,
  ]);
  return markdownTable(['status', 'code', 'cause', 'remedy'], rows);
}

/** Codes of one text share a row. */
function reasonTable(): string {
  const codes = new Map<ReasonText, string[]>();
  for (const [code, texts] of Object.entries(REASONS))
    for (const text of texts) codes.set(text, [...(codes.get(text) ?? []), `\`${code}\``]);
  const rows = [...codes].map(([{ state, remedy }, names]) => [names.join(' '), state, remedy]);
  return markdownTable(['code', 'state', 'what to do'], rows);
}

function failureTable(): string {
  const rows = FLUSH_FAILURES.map((code) => [`\`${code}\``, FAILURES[code]]);
  return markdownTable(['code', 'what to do'], rows);
}
