-- A console that a key has opened ends with the secret that asked: a rotation keeps the key's id. Tickets of before say
-- no secret; they are a minute old at most, and asked for again.
delete from console_tickets where credential_kind = 'key';
alter table console_tickets
  add column secret_hash bytea,
  add check ((credential_kind = 'key') = (secret_hash is not null));
