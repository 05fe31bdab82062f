-- Each refresh replaces the refresh token of its session. All tokens of a session begin alike: that beginning, hashed,
-- finds the session also for a token that was replaced. Sessions of before get no new tokens: their people log in again.
alter table sessions drop column refresh_hash;
alter table sessions add column refresh_family bytea unique;
alter table sessions add column refresh_hash bytea;
-- Those replaced a moment ago, which are still taken.
create table replaced_refresh_tokens (
  token_hash  bytea primary key,
  session_id  text not null references sessions on delete cascade,
  replaced_at timestamptz not null default clock_timestamp()
);
create index replaced_refresh_tokens_session on replaced_refresh_tokens (session_id);
