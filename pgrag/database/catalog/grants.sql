-- Statements that repeat what administrators granted on the functions :routines, the views :views and the types :types.
-- The default of functions and types (everybody may use them) is not repeated, but its revocation is: a release may
-- close a function. `public` is the privilege that everybody has by default.
with item as (
    select
        format('routine %s.%I(%s)', p.pronamespace::regnamespace, p.proname, oidvectortypes(p.proargtypes)) as name,
        format('%I(%s)', p.proname, oidvectortypes(p.proargtypes)) as identity,
        p.proowner as owner, null::name as attribute, p.proacl as acl, 'execute' as public
    from pg_proc p
    where p.oid = any (cast(:routines as oid[])) and p.proacl is not null
    union all
    select format('table %s.%I', c.relnamespace::regnamespace, c.relname), quote_ident(c.relname), c.relowner, null, c.relacl, null
    from pg_class c
    where c.oid = any (cast(:views as oid[])) and c.relacl is not null
    union all
    select format('table %s.%I', c.relnamespace::regnamespace, c.relname), quote_ident(c.relname), c.relowner, a.attname, a.attacl, null
    from pg_class c
    join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    where c.oid = any (cast(:views as oid[])) and a.attacl is not null
    union all
    select format('type %s.%I', t.typnamespace::regnamespace, t.typname), quote_ident(t.typname), t.typowner, null, t.typacl, 'usage'
    from pg_type t
    where t.oid = any (cast(:types as oid[])) and t.typacl is not null
)
select
    item.identity,
    item.attribute,
    format(
        'grant %s%s on %s to %s%s',
        entry.privilege_type,
        ' (' || quote_ident(item.attribute) || ')',
        item.name,
        case when entry.grantee = 0 then 'public' else quote_ident(pg_get_userbyid(entry.grantee)) end,
        case when entry.is_grantable then ' with grant option' else '' end
    ) as statement
from item
cross join lateral aclexplode(item.acl) entry
where entry.grantee <> item.owner and not (item.public is not null and entry.grantee = 0)
union all
select item.identity, null, format('revoke %s on %s from public', item.public, item.name)
from item
where item.public is not null and not exists (select from aclexplode(item.acl) entry where entry.grantee = 0)
order by 1, 3;
