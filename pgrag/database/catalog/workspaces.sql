-- Schemas named like a workspace that hold one: its table meta and the version table of its revisions.
select n.nspname
from pg_namespace n
where (n.nspname = 'pgrag' or starts_with(n.nspname, 'pgrag_'))
    and 2 = (
        select count(*) from pg_class c
        where c.relnamespace = n.oid and c.relkind = 'r' and c.relname in ('meta', 'alembic_version')
    )
order by n.nspname;
