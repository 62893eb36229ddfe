-- What DROP ... CASCADE of the functions :routines, the views :views and the types :types would drop besides them,
-- described for people.
-- Follows pg_depend as DROP does: to whatever depends on an object, and from an internal part up to its owner.
with recursive own (classid, objid) as (
    select 'pg_proc'::regclass::oid, unnest(cast(:routines as oid[]))
    union all
    select 'pg_class'::regclass::oid, unnest(cast(:views as oid[]))
    union all
    select 'pg_type'::regclass::oid, unnest(cast(:types as oid[]))
),
reached (classid, objid, objsubid) as (
    select own.classid, own.objid, 0 from own
    union
    select step.classid, step.objid, step.objsubid
    from reached r
    cross join lateral (
        select d.classid, d.objid, d.objsubid
        from pg_depend d
        where d.refclassid = r.classid and d.refobjid = r.objid and r.objsubid in (0, d.refobjsubid)
        union all
        select d.refclassid, d.refobjid, d.refobjsubid
        from pg_depend d
        where d.classid = r.classid and d.objid = r.objid and d.deptype in ('i', 'e')
    ) step
)
select distinct object.type || ' ' || object.identity
from reached r
cross join lateral pg_identify_object(r.classid, r.objid, r.objsubid) object
where not exists (select from own where own.classid = r.classid and own.objid = r.objid)
    and not exists (
        select from pg_depend d where d.classid = r.classid and d.objid = r.objid and d.objsubid = r.objsubid and d.deptype = 'i'
    )
order by 1;
