-- Most deliveries are tried once: their attempt stands in their own row, and webhook_attempts has those after the first.
-- Attempts from before stay where they are until their 14 days are over.
alter table webhook_deliveries
  add column first_at         timestamptz,
  add column first_status     smallint,
  add column first_latency_ms integer,
  add column first_error      text,
  add column first_response   text;

-- Nothing reads events by their position alone, and whoever gives positions holds the row of the last one.
drop index events_position;
