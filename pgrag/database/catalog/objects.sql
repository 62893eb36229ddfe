-- Functions, views and composite types of schema :schema that belong to no extension, in order of creation.
-- identity is free of the schema's name (search_path starts with it), so it survives a rename of the schema.
-- digest tells what was changed since. What a view says is kept parsed only, and each major version of the server writes
-- it out in its own way: a view's digest starts with the version it was made on, and says nothing about another one.
select
    object.kind, object.oid, object.identity, object.version,
    object.writer || encode(sha256(convert_to(object.definition, 'UTF8')), 'hex') as digest
from (
    select
        'routine' as kind, p.oid, p.xmin::text as version, 'pg_proc'::regclass as catalog,
        format('%I(%s)', p.proname, oidvectortypes(p.proargtypes)) as identity, '' as writer,
        case when p.prokind = 'a' then '' else pg_get_functiondef(p.oid) end as definition
    from pg_proc p
    where p.pronamespace = cast(:schema as regnamespace)
    union all
    select
        'view', c.oid, c.xmin::text, 'pg_class'::regclass, quote_ident(c.relname),
        current_setting('server_version_num')::integer / 10000 || ':',
        coalesce(c.reloptions::text, '') || pg_get_viewdef(c.oid)
    from pg_class c
    where c.relnamespace = cast(:schema as regnamespace) and c.relkind = 'v'
    union all
    select
        'type', t.oid, t.xmin::text, 'pg_type'::regclass, quote_ident(t.typname), '',
        (
            select coalesce(string_agg(format('%I %s', a.attname, format_type(a.atttypid, a.atttypmod)), ', ' order by a.attnum), '')
            from pg_attribute a
            where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        )
    from pg_type t
    join pg_class c on c.oid = t.typrelid
    where t.typnamespace = cast(:schema as regnamespace) and c.relkind = 'c'
) object
where not exists (
    select from pg_depend d
    where d.classid = object.catalog and d.objid = object.oid and d.deptype = 'e'
)
order by object.oid;
