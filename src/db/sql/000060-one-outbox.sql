-- The dispatcher gives each event its position, so positions follow commits.
drop index events_position;
alter table events alter column position drop identity;
alter table events alter column position drop not null;
alter table events add column serial bigint not null generated always as identity;
create index events_waiting on events (serial) where position is null;

-- An audit entry has a place in its chain or none yet; the sealer refuses no entry.
drop index audit_log_unsealed;
alter table audit_log drop column refused;
create index audit_log_unsealed on audit_log (serial) where seq is null;

-- One outbox for all mails. A notification waits on its own row for the mail that contains it.
drop table notification_mails;
alter table notifications add column mail_after timestamptz;
create index notifications_mail on notifications (mail_after) where mail_after is not null;
delete from mails;
alter table mails add column kind text not null;
alter table mails add column user_id text references users on delete cascade;
create index mails_user on mails (user_id, kind) where user_id is not null;
