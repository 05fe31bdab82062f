-- When the last mails of a kind went to an address (in lower case), oldest first: those of the last quarter of an hour count.
create table mail_counts (
  address text not null,
  kind    text not null,
  sent_at timestamptz[] not null,
  primary key (address, kind)
);
