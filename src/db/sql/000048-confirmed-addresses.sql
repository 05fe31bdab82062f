-- Whether the account's owner has proved that mail to the address reaches them. Accounts made before count as confirmed.
alter table users add column email_confirmed boolean not null default true;
alter table users alter column email_confirmed set default false;

-- The token of the first confirmation is that of a change: both confirm that mail to an address arrives.
alter table mail_tokens drop constraint mail_tokens_kind_check;
update mail_tokens set kind = 'confirm_email' where kind = 'email_change';
alter table mail_tokens add constraint mail_tokens_kind_check check (kind in ('password_reset', 'confirm_email'));
