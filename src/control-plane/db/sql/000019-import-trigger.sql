-- A generation that `berth disk import` made says so.
alter table generations
  drop constraint generations_trigger_check,
  add constraint generations_trigger_check
    check (trigger in ('request', 'auto', 'stop', 'suspend', 'import', 'fork', 'restore'));
