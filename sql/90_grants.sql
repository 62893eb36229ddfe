-- Nobody but the owner calls what writes. Reading is granted by an administrator, object by object or
-- `grant usage on schema … ; grant select on all tables in schema …`; such grants survive every upgrade.
do $do$
declare
    v_function regprocedure;
begin
    for v_function in
        select p.oid from pg_proc p
        where p.pronamespace = (select relnamespace from pg_class where oid = 'meta'::regclass) and p.provolatile = 'v'
          and pg_has_role(p.proowner, 'usage')
    loop
        execute format('revoke all on function %s from public', v_function);
    end loop;
end $do$;
