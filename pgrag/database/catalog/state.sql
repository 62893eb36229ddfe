-- One row about schema :schema: its owner (null: there is none), whether it is a workspace, whether it holds anything
-- but members of extensions, and the role that asks.
select
    n.nspname is not null as present,
    pg_get_userbyid(n.nspowner) as owner,
    exists (
        select from pg_class c where c.relnamespace = n.oid and c.relname = 'alembic_version' and c.relkind = 'r'
    ) as ours,
    exists (
        select from (
            select 'pg_class'::regclass, c.oid from pg_class c where c.relnamespace = n.oid
            union all
            select 'pg_proc'::regclass, p.oid from pg_proc p where p.pronamespace = n.oid
            union all
            select 'pg_type'::regclass, t.oid from pg_type t where t.typnamespace = n.oid
        ) as item (catalog, oid)
        where not exists (
            select from pg_depend d where d.classid = item.catalog and d.objid = item.oid and d.deptype in ('e', 'i')
        )
    ) as occupied,
    current_user as role
from (select) one
left join pg_namespace n on n.nspname = :schema;
