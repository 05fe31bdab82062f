-- Which object store the objects of this database are in, by the mark that lies in it.

create table object_stores (
  -- There is one row at most.
  only_one  boolean primary key default true check (only_one),
  -- What the mark says.
  id        text not null,
  -- From then on a store without the mark is another one.
  marked_at timestamptz
);
