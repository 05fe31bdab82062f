-- The root key, from which every key of the installation is derived, sealed with the secret key.
do $$
begin
  if exists (select from installation) then
    raise exception 'the database is of a Berth before 0.1.0, which this one cannot read: use that Berth, or another data folder';
  end if;
end
$$;
alter table installation
  drop column key_check,
  add column root_key bytea not null,
  -- The same, sealed with the key that replaces the secret key. Null: none does.
  add column new_root_key bytea;
