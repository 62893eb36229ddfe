-- Indexes of the tables of schema :schema, and whether the planner may use them.
select c.relname as name, i.indisvalid and i.indisready as valid
from pg_index i
join pg_class c on c.oid = i.indexrelid
where c.relnamespace = cast(:schema as regnamespace);
