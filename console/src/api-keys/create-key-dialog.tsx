/**
 * The dialog that creates an API key for the user or for a service account. Also exports the checkboxes for a key's
 * scope, and the words for a scope.
 */

import { useState } from 'preact/hooks';
import type { CreateApiKeyRequest } from '../../../client/src/berth.ts';
import type { CreateApiKeyResponse, ServiceAccount } from '../../../client/src/generated.ts';
import { scopeOfRole } from '../../../client/src/words.ts';
import { call } from '../api.ts';
import { role } from '../live/membership.ts';
import { Field, GroupIssue, NameField, Select } from '../ui/field.tsx';
import { FormDialog } from '../ui/form.tsx';

export type MadeKey = CreateApiKeyResponse;

const DAY_S = 86_400;
const LASTING = [
  [30, '30 days'],
  [90, '90 days'],
  [365, '1 year'],
] as const;

interface CreateKeyDialogProps {
  /** The key's owner; absent: the user. */
  readonly holder?: ServiceAccount;
  /** The names of the organisation's keys. */
  readonly taken: readonly string[];
  readonly onClose: () => void;
  readonly onMade: (key: MadeKey) => Promise<void>;
}

function readForm(form: FormData, holder: ServiceAccount | undefined): CreateApiKeyRequest {
  const days = Number(form.get('expires_in_seconds'));
  const allowed_cidrs = String(form.get('allowed_cidrs'))
    .split(/[\s,]+/)
    .filter(Boolean);
  return {
    name: String(form.get('name')).trim(),
    scope: scopeOf(form, holder?.scope ?? scopeOfRole(role.value ?? 'member')),
    ...(days > 0 ? { expires_in_seconds: days * DAY_S } : {}),
    ...(allowed_cidrs.length > 0 ? { allowed_cidrs } : {}),
    ...(holder ? { service_account_id: holder.id } : {}),
  };
}

export function CreateKeyDialog({ holder, taken, onClose, onMade }: CreateKeyDialogProps) {
  return (
    <FormDialog
      title={holder ? `New key of ${holder.name}` : 'New API key'}
      verb="Create the key"
      onClose={onClose}
      work={async (form) => onMade(await call('createApiKey', { body: readForm(form, holder) }))}
      wide
    >
      <NameField what="API key" taken={taken} placeholder="deploys" />
      <ScopeChoice />
      <div class="columns">
        <Select label="Expires after" name="expires_in_seconds" defaultValue="90">
          {LASTING.map(([days, name]) => (
            <option key={days} value={days}>
              {name}
            </option>
          ))}
          <option value="0">Never</option>
        </Select>
        <Field
          label="Only from these networks"
          name="allowed_cidrs"
          placeholder="203.0.113.0/24"
          hint="Empty: from everywhere"
          spellcheck={false}
        />
      </div>
    </FormDialog>
  );
}

interface ScopeChoiceProps {
  readonly all?: string;
}

/** Checkboxes for the scope of a key: everything, or single resources to read and to write. */
export function ScopeChoice({ all: all_text = 'All permissions of its owner' }: ScopeChoiceProps) {
  const [all, setAll] = useState(true);
  return (
    <fieldset class="choice">
      <legend>Permissions</legend>
      <label>
        <input type="radio" name="scope-kind" value="all" checked={all} onChange={() => setAll(true)} />
        <span>{all_text}</span>
      </label>
      <label>
        <input type="radio" name="scope-kind" value="some" checked={!all} onChange={() => setAll(false)} />
        <span>Only these</span>
      </label>
      {!all && (
        <table class="table scopes">
          <thead>
            <tr>
              <th>Resource</th>
              <th>Read</th>
              <th>Write</th>
            </tr>
          </thead>
          <tbody>
            {RESOURCES.map((resource) => (
              <tr key={resource}>
                <th scope="row">{resource}</th>
                {['read', 'write'].map((action) => (
                  <td key={action}>
                    <input
                      type="checkbox"
                      name="scope"
                      value={`${resource}:${action}`}
                      aria-label={`${action} ${resource}`}
                    />
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      )}
      <GroupIssue name="scope" />
    </fieldset>
  );
}

/** The scopes of a key (docs/permissions.md). */
const RESOURCES = [
  'instances',
  'vm',
  'ssh_keys',
  'webhooks',
  'notifications',
  'api_keys',
  'org',
  'audit',
] as const;

/** The ticked boxes as a scope string; `all` if every box is ticked. */
export function scopeOf(form: FormData, all: string): string {
  return form.get('scope-kind') === 'all' ? all : form.getAll('scope').join(' ');
}

/** A scope for people: `*` in words, others as they are written. */
export function ScopeText({ scope }: { readonly scope: string }) {
  return scope === '*' ? <>All permissions</> : <code class="wrap">{scope}</code>;
}
